"""What single series of a panel look like: colours, axes, dashes, fills."""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as shape
from grafana_foundation_sdk.models import dashboard

COLORS = {"used": "blue", "resident": "blue", "evictable": "yellow", "reclaimable": "light-green", "available": "green", "held": "purple",
          "free": "green", "reserved": "purple"}  # fmt: skip
"""A state has one colour everywhere."""
Texts = Mapping[int, tuple[str, str]]
"""Values with the text and the colour they are shown as."""
Look = list[dashboard.DynamicConfigValue]


def look(**properties: object) -> Look:
    """Properties by name; two underscores stand for the dot in names such as ``custom.lineWidth``."""
    return [dashboard.DynamicConfigValue(id_val=name.replace("__", "."), value=value) for name, value in properties.items()]


def colored(color: str) -> Look:
    """One colour."""
    return look(color=dashboard.FieldColor(mode=dashboard.FieldColorModeId.FIXED, fixed_color=color))


def dashed(color: str | None = None) -> Look:
    """What others are compared with: a dashed line on no stack."""
    line = common.LineStyle().fill("dash").dash([8, 6]).build()
    style = look(custom__lineStyle=line, custom__lineWidth=1, custom__fillOpacity=0, custom__stacking=on_stack(None))
    return style if color is None else [*style, *colored(color)]


def on_right(unit: str) -> Look:
    """Another unit than the panel's: its own axis and its own stack."""
    return look(unit=unit, custom__axisPlacement=shape.AxisPlacement.RIGHT, custom__stacking=on_stack(unit))


def filled_to(low: str) -> Look:
    """An interval: the area down to the series of its lower end."""
    return look(custom__fillBelowTo=low, custom__fillOpacity=25)


def on_stack(group: str | None) -> shape.StackingConfig:
    """A place on the stack of that name, or on none."""
    return shape.StackingConfig(mode=shape.StackingMode.NONE if group is None else shape.StackingMode.NORMAL, group=group or "none")


def mapping(texts: Texts) -> dashboard.ValueMapping:
    """Show values as texts in their colours."""
    return dashboard.ValueMap(
        {
            str(value): dashboard.ValueMappingResult(text=text, color=color, index=i)
            for i, (value, (text, color)) in enumerate(texts.items())
        }
    )
