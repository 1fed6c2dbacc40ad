"""Measurements of the transceivers: temperature, voltage, optical power, bias current and their limits."""

from __future__ import annotations

from nodeagent.measurements.family import Family, row
from nodeagent.measurements.sample import Source

_SENSORS = {
    "temperature_celsius": "module_celsius",
    "voltage_volts": "module_volts",
    "receive_power_watts": "rx_power_watts",
    "transmit_power_watts": "tx_power_watts",
    "bias_current_amperes": "bias_amperes",
}
LIMIT_LEVELS = ("high_alarm", "high_warning", "low_warning", "low_alarm")
"""Sample names of a module's own limits: the sensor's name, then one of these."""
LIMITS_OF_ALERTS = frozenset({"module_celsius_high_warning", "rx_power_watts_low_alarm"})
"""The limits that alerts and dashboards compare with (``hack/monitoring.py``, ``hack/dashboards.py``)."""
OTHER_LIMITS = (
    frozenset(f"{name}_{level}" for name in _SENSORS.values() for level in LIMIT_LEVELS) - LIMITS_OF_ALERTS
)

TRANSCEIVER_ROWS: tuple[Family, ...] = (
    row(
        "transceiver_temperature_celsius",
        "device",
        Source.MODULE,
        ("module_celsius", "temperature of the module"),
        help="Temperature of the module.",
        use="At the module's own high alarm (`nodeagent health`) the link is degraded: check fans and cage.",
        peers="transceiver_module_temperature_degrees_celsius",
        rules="optics_temperature optics_temperature_warning",
    ),
    row(
        "transceiver_voltage_volts",
        "device",
        Source.MODULE,
        ("module_volts", "supply voltage of the module"),
        help="Supply voltage of the module.",
        use="Outside its limits: reseat the module, then check the NIC.",
        peers="transceiver_module_voltage_volts",
    ),
    row(
        "transceiver_receive_power_watts",
        "device,lane",
        Source.MODULE,
        ("rx_power_watts", "optical power received; 0 W is stated as 0"),
        per="lane",
        help="Optical power received.",
        use="10 * log10(1000 * v) is dBm; lanes differ by at most 2 dB; 0: the other end does not send.",
        peers="transceiver_laser_rx_power_milliwatts",
        rules="optics_rx_power optics_rx_power_warning lane_imbalance",
    ),
    row(
        "transceiver_transmit_power_watts",
        "device,lane",
        Source.MODULE,
        ("tx_power_watts", "optical power sent; 0 W is stated as 0"),
        per="lane",
        help="Optical power sent.",
        use="Below the low alarm the laser is at the end of its life: replace the module.",
        peers="transceiver_laser_tx_power_milliwatts",
    ),
    row(
        "transceiver_bias_current_amperes",
        "device,lane",
        Source.MODULE,
        ("bias_amperes", "laser bias current"),
        per="lane",
        help="Laser bias current.",
        use="Rises as a laser ages: compare with the other lanes and with the limit.",
        peers="transceiver_laser_bias_current_milliamperes",
    ),
    row(
        "transceiver_ready",
        "device",
        Source.MODULE,
        ("module_ready", "the CMIS module state is ready, 0 or 1"),
        help="1 while the CMIS module is in the state ready.",
        use="0 on a link that should be up: the module is in low power or has a fault.",
    ),
    row(
        "transceiver_threshold",
        "device,sensor,level",
        Source.MODULE,
        *(
            (f"{name}_{level}", "the module's own limit", sensor, level)
            for sensor, name in _SENSORS.items()
            for level in LIMIT_LEVELS
        ),
        help="The module's own limits, in the unit at the end of the sensor's name.",
        use="Draw them with the sensor; the rules prefer them to the configured limits. By default those that alerts "
        "compare with, all with `web.opticsLimits: all`.",
        peers="transceiver_*_threshold_*",
        rules="optics_temperature optics_temperature_warning optics_rx_power optics_rx_power_warning",
    ),
)
