"""`systems`: the list, one system, JSON, and a file of the user's own; without a cluster."""

import json

from cerebras_contract.systems import load_system, system_names


def test_the_list_has_every_system_and_keeps_marketed_figures_apart(command, capfd):
    assert command("systems") == 0
    lines = capfd.readouterr().out.splitlines()
    header = next(line for line in lines if "SYSTEM" in line)
    rows = {words[0]: line for line in lines if (words := line.split()) and words[0] in system_names()}
    assert [*rows] == system_names()
    before = header.index("MARKETED")
    assert "745,500" in rows["cs-2"][:before]
    assert "5.069 PFLOP/s" in rows["cs-2"][:before]
    assert rows["cs-2"][before:].split() == ["850,000", "cores,", "7.5", "PFLOP/s"]
    assert "125 PFLOP/s sparse" in rows["cs-3"][before:]


def test_json_is_the_spec_and_what_follows_from_it(command, capfd):
    assert command("systems", "--json") == 0
    listed = {spec["name"]: spec for spec in json.loads(capfd.readouterr().out)}
    assert [*listed] == system_names()
    assert listed["cs-3"]["processing_elements"] == 762 * 1172
    assert listed["cs-3"].items() >= load_system("cs-3").model_dump(mode="json").items()
    assert command("systems", "cs-3", "--json") == 0
    assert json.loads(capfd.readouterr().out) == listed["cs-3"]


def test_one_system_is_shown_with_all_its_figures(command, capfd):
    assert command("systems", "cs-3") == 0
    shown = capfd.readouterr().out
    for figure in ("762 x 1,172 = 893,064 PEs", "24", "21 PB/s", "26.75 PB/s", "18.4 kW", "1.5 TB, 12 TB, 1.2 PB"):
        assert figure in shown
    assert "125 PFLOP/s (sparse)" in shown


def test_a_system_of_ones_own_is_shown_as_it_is_written(command, capfd, tmp_path):
    path = tmp_path / "wse4.yaml"
    path.write_text("like: cs-3\nengine: '[red]WSE-4'\nfabric_rows: 2344\n")
    assert command("systems", str(path)) == 0
    shown = capfd.readouterr().out
    assert "[red]WSE-4" in shown
    assert "762 x 2,344" in shown
    path.write_text("like: cs-3\nfabric_row: 2344\n")
    assert command("systems", str(path)) == 2
    assert f"{path}:2: unknown key 'fabric_row'" in capfd.readouterr().err


def test_an_unknown_system_names_the_known_ones(command, capfd):
    assert command("systems", "cs-9") == 2
    assert "cs-1, cs-2, cs-3, tiny" in capfd.readouterr().err
