"""Plans and the errors that carry diagnostics."""

import pickle

import pytest

import shiplap


def test_every_example_plan_survives_text_json_and_pickle(root):
    plans = sorted((root / "examples" / "plans").glob("*.plan"))
    assert len(plans) > 10
    for path in plans:
        plan = shiplap.Plan.read(path)
        assert plan.name == path.name
        assert shiplap.Plan.parse(plan.to_text()) == plan
        assert shiplap.Plan.from_dict(plan.to_dict()) == plan
        assert pickle.loads(pickle.dumps(plan)) == plan
        assert plan != "a plan"
        assert plan.ranks >= 1 and repr(plan).startswith(f"<Plan {path.name}: ")


def test_show_is_what_the_command_prints(root, command):
    path = root / "examples" / "plans" / "ddp.plan"
    plan = shiplap.Plan.read(path)
    assert command("show", path).stdout.strip() == str(plan).strip()
    assert command("show", path, "--rank", "1").stdout.strip() == plan.show(rank=1).strip()


def test_an_error_names_file_line_and_a_way_to_mend_it():
    with pytest.raises(shiplap.InputError) as caught:
        shiplap.Plan.parse("mesh dp 4\nprogram p on al\n", "mine.plan")
    (first, *_) = caught.value.diagnostics
    assert first.file == "mine.plan" and first.line >= 1
    assert first.code.startswith("D1")
    assert "mine.plan" in str(caught.value) and f"[{first.code}]" in str(caught.value)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, shiplap.Error)
    assert first.to_dict()["code"] == first.code
    assert shiplap.explain(first.code).startswith("#")


def test_a_file_that_is_not_there():
    with pytest.raises(shiplap.InputError) as caught:
        shiplap.Plan.read("no_such.plan")
    assert caught.value.diagnostics[0].code == "D004"


def test_a_rank_that_is_not_there(root):
    plan = shiplap.Plan.read(root / "examples" / "plans" / "ddp.plan")
    with pytest.raises(shiplap.InputError, match="ranks 0 to"):
        plan.show(rank=plan.ranks)


def test_save(tmp_path, root):
    plan = shiplap.Plan.read(root / "examples" / "plans" / "fsdp.plan")
    plan.save(tmp_path / "again.plan")
    assert shiplap.Plan.read(tmp_path / "again.plan") == plan
    with pytest.raises(shiplap.InputError):
        plan.save(tmp_path / "no" / "folder.plan")
