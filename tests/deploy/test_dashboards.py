"""Dashboards fit Grafana, which passes over a bad one with a line in its log."""

import re
from itertools import combinations
from typing import Any

import pytest
import yaml
from tests.deploy.committed import GRAFANA, METRIC, SELECTOR, dashboards, panels, queries, variables

BOARDS = dashboards()
UIDS = {"minefleet-training", "minefleet-flow", "minefleet-actors", "minefleet-services"}
"""Links and bookmarks hold them."""
COLUMNS = 24
UNITS = {"short", "none", "percentunit", "s", "bytes", "binBps", "cps", "reqps", "suffix: cores"}
"""Of Grafana's units, https://github.com/grafana/grafana/blob/main/packages/grafana-data/src/valueFormats/categories.ts."""
TYPES = {"row", "stat", "timeseries", "state-timeline"}
COLORS = {"text", "green", "yellow", "orange", "red", "blue", "purple"}

each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS.keys())


def datasource() -> dict[str, str]:
    (provisioned,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    return {"type": provisioned["type"], "uid": provisioned["uid"]}


def shown(board: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels that are no rows."""
    return [panel for panel in panels(board) if panel["type"] != "row"]


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {
        (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    }


def test_each_dashboard_keeps_its_uid_and_has_a_file_and_a_title_of_its_own() -> None:
    assert {board["uid"] for board in BOARDS.values()} == UIDS
    assert [f"{board['uid']}.json" for board in BOARDS.values()] == [*BOARDS]
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


@each_board
def test_dashboard_can_be_provisioned_without_an_id(board: dict[str, Any]) -> None:
    assert board["id"] is None
    assert board["editable"] is True
    assert board["schemaVersion"] >= 39
    assert board["description"] and board["tags"] == ["minefleet"]


@each_board
def test_panels_have_ids_of_their_own_and_do_not_overlap(board: dict[str, Any]) -> None:
    made = list(panels(board))
    assert len({panel["id"] for panel in made}) == len(made)
    assert all(panel["type"] in TYPES for panel in made)
    for panel in made:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["w"] > 0 and place["x"] + place["w"] <= COLUMNS, panel["title"]
        assert place["y"] >= 0 and place["h"] > 0, panel["title"]
    for one, other in combinations(made, 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])


@each_board
def test_dashboard_panels_leave_no_gap_in_a_line(board: dict[str, Any]) -> None:
    """Grafana would pull panels up into the gaps."""
    taken = [cell for panel in panels(board) for cell in cells(panel)]
    assert len(taken) == COLUMNS * (1 + max(y for _, y in taken))


@each_board
def test_dashboard_rows_are_questions_and_panels_have_titles_and_descriptions(board: dict[str, Any]) -> None:
    assert board["panels"][0]["type"] == "row"
    rows = [panel for panel in panels(board) if panel["type"] == "row"]
    assert all(row["title"].endswith("?") for row in rows)
    assert len(rows) <= 5
    titles = [(panel["title"], panel["description"]) for panel in shown(board)]
    assert all(title and text.endswith(".") for title, text in titles)
    assert len({title for title, _ in titles}) == len(titles)


@each_board
def test_every_panel_asks_the_provisioned_datasource(board: dict[str, Any]) -> None:
    asking = [*shown(board), *board["templating"]["list"], *board["annotations"]["list"]]
    asking += [target for panel in shown(board) for target in panel["targets"]]
    assert all(one["datasource"] == datasource() for one in asking)


@each_board
def test_every_panel_has_queries_a_unit_and_colours_that_there_are(board: dict[str, Any]) -> None:
    for panel in shown(board):
        targets = panel["targets"]
        assert targets, panel["title"]
        assert all(target["expr"].strip() and target["refId"] for target in targets), panel["title"]
        assert len({target["refId"] for target in targets}) == len(targets), panel["title"]
        assert len({target.get("legendFormat") for target in targets}) == len(targets), panel["title"]
        assert all(target.get("instant", False) is (panel["type"] == "stat") for target in targets), panel["title"]
        look = panel["fieldConfig"]["defaults"]
        assert look["unit"] in UNITS, panel["title"]
        first, *later = look["thresholds"]["steps"]
        assert first["value"] is None and all(step["value"] is not None for step in later), panel["title"]
        assert {step["color"] for step in (first, *later)} <= COLORS, panel["title"]


@each_board
def test_every_metric_is_asked_of_the_chosen_jobs_and_instances_only(board: dict[str, Any]) -> None:
    for place, query in queries(board):
        for selector in SELECTOR.findall(query):
            assert 'job=~"$job",instance=~"$instance"' in selector, (place, selector)
        assert not re.search(r'(?:job|instance)="', query), place
        assert not re.search(r":\d{4}|localhost|127\.0", query), place


@each_board
def test_rates_follow_the_scrape_interval(board: dict[str, Any]) -> None:
    for place, query in queries(board):
        assert all(window == "$__rate_interval" for window in re.findall(r"\brate\([^\[]*\[([^\]]+)\]", query)), place


@each_board
def test_job_and_instance_can_be_chosen(board: dict[str, Any]) -> None:
    made = {name: (metric, label) for name, metric, label in variables(board)}
    assert {name: label for name, (_, label) in made.items()} == {"job": "job", "instance": "instance"}
    assert METRIC.fullmatch(made["job"][0])
    assert made["instance"][0] == f'{made["job"][0]}{{job=~"$job"}}'
    for variable in board["templating"]["list"]:
        assert variable["multi"] and variable["includeAll"] and variable["current"]["value"] == "$__all"
        assert "allValue" not in variable, "all would be more than what can be chosen"


@each_board
def test_dashboard_queries_use_only_its_own_variables(board: dict[str, Any]) -> None:
    for place, query in queries(board):
        assert set(re.findall(r"\$\{?(\w+)", query)) <= {"job", "instance", "__rate_interval"}, place


def test_the_provider_reads_the_dashboards_and_lets_people_change_them() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/minefleet.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["allowUiUpdates"] is True
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
