"""The health of NICs and GPUs: rules, engines and their service. ``service`` and ``state_file`` alone are not pure."""
