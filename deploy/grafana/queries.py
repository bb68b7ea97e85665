"""PromQL, as the dashboards use it: everything is restricted to the jobs and instances that are chosen above them."""

CHOSEN = 'job=~"$job",instance=~"$instance"'


def chosen(metric: str, **labels: str) -> str:
    """A metric of the chosen instances; a label's value that begins with an operator keeps it: `reason="=~a|b"`."""
    matchers = "".join(f",{name}{_matcher(value)}" for name, value in labels.items())
    return f"{metric}{{{CHOSEN}{matchers}}}"


def rate(counter: str, by: str = "", **labels: str) -> str:
    """Per second, summed."""
    return f"sum{_by(by)}(rate({chosen(counter, **labels)}[$__rate_interval]))"


def counted(counter: str, window: str, by: str = "", **labels: str) -> str:
    """How often within a time, summed."""
    return f"sum{_by(by)}(increase({chosen(counter, **labels)}[{window}]))"


def quantile(share: float, histogram: str, by: str = "", **labels: str) -> str:
    """A quantile of what was observed lately."""
    within = rate(f"{histogram}_bucket", f"le, {by}".removesuffix(", "), **labels)
    return f"histogram_quantile({share}, {within})"


def average(histogram: str, by: str = "", **labels: str) -> str:
    """The mean of what was observed lately."""
    return f"{rate(f'{histogram}_sum', by, **labels)} / {rate(f'{histogram}_count', by, **labels)}"


def total(gauge: str, by: str = "", **labels: str) -> str:
    """Summed."""
    return f"sum{_by(by)}({chosen(gauge, **labels)})"


def largest(gauge: str, by: str = "", **labels: str) -> str:
    """The largest."""
    return f"max{_by(by)}({chosen(gauge, **labels)})"


def smallest(gauge: str, by: str = "", **labels: str) -> str:
    """The smallest."""
    return f"min{_by(by)}({chosen(gauge, **labels)})"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""


def _matcher(value: str) -> str:
    for operator in ("=~", "!~", "!="):
        if value.startswith(operator):
            return f'{operator}"{value.removeprefix(operator)}"'
    return f'="{value}"'
