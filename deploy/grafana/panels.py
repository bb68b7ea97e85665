"""How panels and dashboards look.

A dashboard is 24 columns wide; a panel says how many it takes. Rows have a question as their title, and their panels
are the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from grafana_foundation_sdk.builders import common as looks
from grafana_foundation_sdk.builders import dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="prometheus")
TAG = "minefleet"
STAT_HEIGHT, HEIGHT = 4, 8

Unit = Literal["short", "none", "percentunit", "s", "bytes", "binBps", "cps", "reqps", "cores"]
"""Grafana's ids: `cps` counts per second, `binBps` bytes per second, `percentunit` shares from 0 to 1."""
UNITS: Mapping[Unit, str] = {"cores": "suffix: cores"}
"""Those that Grafana has no id for."""

Curve = tuple[str, str]
"""A query, and its legend."""
Steps = Mapping[float, str]
"""From which value on which colour."""
Panel = stat.Panel | statetimeline.Panel | timeseries.Panel


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A dashboard."""

    uid: str
    title: str
    text: str
    """What it answers."""
    metric: str
    """Who exports it can be chosen."""
    rows: Sequence[tuple[str, Sequence[Panel]]]
    """Questions and answers."""


def figure(
    title: str,
    text: str,
    query: str,
    *,
    unit: Unit = "short",
    span: int = 4,
    steps: Steps | None = None,
    names: Sequence[tuple[float, float, str, str]] = (),
    legend: str = "",
) -> stat.Panel:
    """One number.

    Args:
        title: What it is.
        text: What it means.
        query: Its newest value is shown.
        unit: Of the number.
        span: Columns.
        steps: Colours.
        names: Shown instead of numbers: from, to, what, colour.
        legend: Where the number has a name, or there are several.
    """
    panel = (
        stat.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .unit(UNITS.get(unit, unit))
        .height(STAT_HEIGHT)
        .span(span)
        .thresholds(_thresholds(steps or {}))
        .mappings([_named(*name) for name in names])
        .color_mode(common.BigValueColorMode.BACKGROUND if steps or names else common.BigValueColorMode.NONE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(looks.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if legend:
        panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME)
    return panel.with_target(_target(0, (query, legend)).instant())


def chart(
    title: str,
    text: str,
    *curves: Curve,
    unit: Unit = "short",
    span: int = 8,
    bounds: tuple[float | None, float | None] = (0, None),
    steps: Steps | None = None,
    stacked: bool = False,
    logarithmic: bool = False,
) -> timeseries.Panel:
    """Curves over time.

    Args:
        title: What they are.
        text: What they mean.
        curves: Queries and legends.
        unit: Of the axis.
        span: Columns.
        bounds: Of the axis; None leaves it to the data.
        steps: Lines from which on it is worth a look.
        stacked: One on the other.
        logarithmic: The axis.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .unit(UNITS.get(unit, unit))
        .height(HEIGHT)
        .span(span)
        .thresholds(_thresholds(steps or {}))
        .thresholds_style(looks.GraphThresholdsStyleConfig().mode(_style(steps)))
        .line_width(1)
        .fill_opacity(30 if stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
        .stacking(looks.StackingConfig().mode(common.StackingMode.NORMAL if stacked else common.StackingMode.NONE))
        .legend(_legend(curves))
        .tooltip(looks.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    )
    lowest, highest = bounds
    if logarithmic:
        panel.scale_distribution(looks.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10))
    elif lowest is not None:
        panel.min(lowest)
    if highest is not None:
        panel.max(highest)
    for index, curve in enumerate(curves):
        panel.with_target(_target(index, curve).range())
    return panel


def states(
    title: str, text: str, curve: Curve, *, names: Sequence[tuple[float, float, str, str]], span: int = 24
) -> statetimeline.Panel:
    """What each instance was doing when; `names` are from, to, what and colour."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(text)
        .datasource(DATASOURCE)
        .unit("none")
        .height(HEIGHT)
        .span(span)
        .thresholds(_thresholds({}))
        .mappings([_named(*name) for name in names])
        .with_target(_target(0, curve).range())
    )


def build(page: Page) -> dict[str, Any]:
    """The dashboard, as Grafana reads it."""
    numbers = count(1)
    made = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.text)
        .tags([TAG])
        .editable()
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_link())
        .annotation(_alerts())
        .with_variable(_variable("job", f"label_values({page.metric}, job)"))
        .with_variable(_variable("instance", f'label_values({page.metric}{{job=~"$job"}}, instance)'))
    )
    for question, panels in page.rows:
        made.with_row(dashboard.Row(question).id(next(numbers)))
        for panel in panels:
            made.with_panel(panel.id(next(numbers)))
    return made.build().to_json() | {"id": None}


def _target(index: int, curve: Curve) -> prometheus.Dataquery:
    query, legend = curve
    target = prometheus.Dataquery().expr(query).ref_id(chr(ord("A") + index)).datasource(DATASOURCE)
    return target.legend_format(legend) if legend else target


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    base = models.Threshold(value=None, color="green" if steps else "text")
    later = [models.Threshold(value=value, color=color) for value, color in sorted(steps.items())]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps([base, *later])


def _style(steps: Steps | None) -> common.GraphThresholdsStyleMode:
    return common.GraphThresholdsStyleMode.DASHED if steps else common.GraphThresholdsStyleMode.OFF


def _legend(curves: Sequence[Curve]) -> looks.VizLegendOptions:
    """Without one where a single curve is what the title says."""
    named = len(curves) > 1 or "{{" in curves[0][1]
    legend = looks.VizLegendOptions().show_legend(named).placement(common.LegendPlacement.BOTTOM)
    return legend.display_mode(common.LegendDisplayMode.LIST)


def _named(low: float, high: float, text: str, color: str) -> models.RangeMap:
    result = models.ValueMappingResult(text=text, color=color)
    return models.RangeMap(models.DashboardRangeMapOptions(from_val=low, to=high, result=result))


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .query({"query": query, "refId": "values"})
        .datasource(DATASOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _link() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink(TAG).type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).keep_time(True)


def _alerts() -> dashboard.AnnotationQuery:
    query = dashboard.AnnotationQuery().name("Alerts").datasource(DATASOURCE).enable(True).icon_color("red")
    return query.expr('ALERTS{alertstate="firing"}')
