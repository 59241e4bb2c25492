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


EVERYTHING = """shiplap-plan 1
mesh dp=2 tp=4
alias both = dp tp
list cut = 0 3 5 6 8
list rows = 4 1 7
tensor W[3] Weight shard 8
tensor G[3] WeightGrad shard 8 sum sample 16 scale 1/16
tensor P Probability tok 8 sum key 8 mask key<=tok and rows[key]=rows[tok]
table route
  message 0 1 0 2 3
program first on dp=0
  buffer w rows 8 row_bytes 2*cut[tp+1] bf16
  buffer g rows 8 row_bytes 64 f32 host
  streams net, side
  keep w[tp*2 +2] = W[0] shard tp*2 +2
  given g = G[1] sum none
  goal g[tp of cut] = G[1] shard tp +1 | 7 +1 sum sample 2*dp +2 by 3 scale 1/8
  let half = (tp-rank) mod 2
  repeat s 3
    when s<2 and half=0
      f[s, half]: @net send w[s +1] to tp+s wrap tag 5+s channel weights async
    end
    u: compute update joined work gemm 2*s flop 8e9 bytes bf16 label all of it
      reads  g = G[s] shard from rows[s +1]
      writes w = new W[s]
      adds   g[0 +1] = G[2] sum sample 0 +1
    receive g[0 +1] from rank 7-rank add after f[s, half], u
  end
  x: @side batch after u
    all_gather w to g over (dp, tp)/other split cut
    repeat k 2
      broadcast w[k +1] over dp{0, 1} root 1
      barrier over ranks{0, 3}
    end
  end
  copy w[from rows[0 +2]] to g[0 +2] add
  reduce w to g over both operator max scale 1/2 root 2
  exchange w to g by route reversed over both add
  allocate g[0 +4]
  free g[0 +4]
  compute probe work 0.001 seconds times 2*tp label "a # b"
program second on dp=1 tp=0..1|3
spare on rank=6
"""


def test_a_builder_has_all_words_of_the_text():
    b = shiplap.PlanBuilder()
    dp = b.axis("dp", 2)
    tp = b.axis("tp", 4)
    both = b.alias("both", [dp, tp])
    cut = b.list("cut", [0, 3, 5, 6, 8])
    rows = b.list("rows", [4, 1, 7])
    W = b.tensor("W", "Weight", instances=3, part={"shard": 8})
    G = b.tensor("G", "WeightGrad", instances=3, part={"shard": 8}, sum={"sample": 16},
                 scale=(1, 16))
    b.tensor("P", "Probability", part={"tok": 8}, sum={"key": 8},
             mask="key<=tok and rows[key]=rows[tok]")
    route = b.table("route", [(0, 1, 0, 2, 3)])
    b.program("first", "dp=0")
    w = b.buffer("w", rows=8, row_bytes=2 * cut[tp + 1])
    g = b.buffer("g", rows=8, row_bytes=64, type="f32", memory="host")
    net = b.stream("net")
    side = b.stream("side")
    b.keep(w(tp * 2, 2), W[0]("shard", tp * 2, 2))
    b.given(g, G[1].zero())
    b.goal(g.cut(tp, cut),
           G[1]("sample", 2 * dp, 2, 3)("shard", tp, 1)("shard", 7, 1).scaled(1, 8))
    half = b.let("half", (tp - b.rank) % 2)
    with b.repeat("s", 3) as s:
        with b.when((s, "<", 2), (half, "=", 0)):
            b.send(w(s, 1), tp.wrap(s), tag=5 + s, channel="weights", name=("f", s, half),
                   stream=net, async_=True)
        b.compute("update", reads=[(g, G[s].listed("shard", rows, s, 1))],
                  writes=[(w, W[s].updated())], adds=[(g(0, 1), G[2]("sample", 0, 1))],
                  name="u", joined=True, label="all of it",
                  work={"kernel_class": "gemm", "flop": 2 * s, "bytes": 8 * 10**9, "type": "bf16"})
        b.receive(g(0, 1), 7 - b.rank, add=True, after=[("f", s, half), "u"])
    with b.batch(name="x", stream=side, after=["u"]):
        b.collective("all_gather", w, g, over="(dp, tp)/other", split=cut)
        with b.repeat("k", 2) as k:
            b.collective("broadcast", w(k, 1), over="dp{0, 1}", root=1)
            b.collective("barrier", over="ranks{0, 3}")
    b.copy(w.listed(rows, 0, 2), g(0, 2), add=True)
    b.collective("reduce", w, g, over=both, operator="max", scale=(1, 2), root=2)
    b.exchange(w, g, by=route, reversed=True, over=both, add=True)
    b.allocate(g(0, 4))
    b.free(g(0, 4))
    b.compute("probe", work={"seconds": 0.001, "times": 2 * tp}, label="a # b")
    b.program("second", "dp=1 tp=0..1|3")
    b.spare("rank=6")
    assert b.build().to_text() == EVERYTHING


def test_signs_bind_as_in_python():
    b = shiplap.PlanBuilder()
    tp = b.axis("tp", 4)
    b.program("all")

    def numbers(tp):
        return [tp - (1 - tp), (tp + 1) * 2, 2 * (tp % 3), 7 - tp - 1, -(tp - 2) // 2,
                (tp * 5) // (tp + 1)]

    for k, number in enumerate(numbers(tp)):
        b.let(f"n{k}", number)
    lines = b.build().to_text().splitlines()[3:]
    for tp in range(4):
        for line, number in zip(lines, numbers(tp), strict=True):
            text = line.split(" = ")[1].replace(" div ", "//").replace(" mod ", "%")
            assert eval(text, {"tp": tp}) == number, line


def test_a_builder_refuses_as_the_text_does():
    b = shiplap.PlanBuilder()
    b.axis("tp", 2)
    b.program("all")
    x = b.buffer("x", rows=4, row_bytes=4)
    with b.repeat("u", 2) as u:
        pass
    b.free(x(u, 1))
    with pytest.raises(shiplap.InputError, match=r"D102.*`u` is not a number here") as caught:
        b.build("late")
    assert caught.value.diagnostics[0].file == "late" and caught.value.diagnostics[0].line == 7
    with pytest.raises(TypeError, match="work has no 'flops': its keys are bytes, flop"):
        b.compute("gemm", work={"kernel_class": "gemm", "flops": 2})
    with pytest.raises(TypeError, match="colour"):
        b.free(x, colour="red")
    with pytest.raises(TypeError):
        b.buffer("y", rows=1.5, row_bytes=4)


def test_a_block_that_fails_leaves_nothing_behind():
    b = shiplap.PlanBuilder()
    b.axis("tp", 2)
    b.program("all")
    x = b.buffer("x", rows=4, row_bytes=4)
    with pytest.raises(TypeError, match="colour"), b.repeat("u", 2):
        b.free(x, colour="red")
    with b.repeat("u", 2) as u:
        b.free(x(u, 1))
    assert "repeat u 2" in b.build().to_text()
