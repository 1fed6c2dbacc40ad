"""The health of NICs and GPUs: rules, engines and their service. ``service`` and ``state_file`` alone are not pure.

The room imports ``model``, ``measurements``, ``affinity``, ``config`` and ``host``, and no source, kind or inventory.
A value enters through ``service.HealthService``: facts by ``judge_functions``, samples by ``take_samples``, and the
readings of the GPU driver by ``judge_gpus``.
"""
