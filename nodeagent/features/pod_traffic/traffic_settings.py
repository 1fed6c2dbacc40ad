"""The settings of the judgement of traffic."""

from typing import Annotated

from nodeagent.config.setting import Settings, setting


class TrafficSettings(Settings, frozen=True, kw_only=True):
    """The judgement of what the VFs of pods carry."""

    report: Annotated[
        bool,
        setting(
            "Report for each pod with VFs whether its rails carry traffic, are silent, or carry less than the others, "
            "for `nodeagent job --rails` and the metrics of jobs. Bytes are not reported. Needs samples.vfSeconds. Off "
            "by default: the definition of NodeLinks must be of this version, or the report is incomplete."
        ),
    ] = False
