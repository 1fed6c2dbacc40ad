"""The health of NICs and GPUs: rules, judges and their service. ``service`` and ``state_file`` alone are not pure."""
