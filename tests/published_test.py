"""Checks data/published: units, ranges, columns that agree within what was rounded, sources.

A time and the two bandwidths printed with it must agree: bytes / time is the algorithm's bandwidth,
and the bus bandwidth is that times the factor of the operation in nccl-tests' doc/PERFORMANCE.md.
A digit copied wrong, a wrong number of GPUs or a wrong operation breaks one of the two.
"""

import csv
import re
import unittest
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "data" / "published"
# The bus bandwidth by the algorithm's, in units of 1 / gpus.
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1),
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "all_to_all": lambda n: n - 1,
    "broadcast": lambda n: n,
    "sendrecv": lambda n: n,
}
NUMBERS = ("time_us", "algbw_gb_s", "busbw_gb_s")
CONDITIONS = ("operation", "device", "gpus", "nodes", "method", "algorithm", "protocol", "network")
METHODS = {"nccl-tests", "all_reduce_bench", "xla"}
MAX_NVLINK_GB_S = {"A100": 300, "H100": 450, "H200": 450, "B200": 900, "GB200": 900, "MI300X": 448}


def rows(name):
    with open(FOLDER / name, newline="") as file:
        return list(csv.DictReader(file))


def half_digit(text):
    """Half a unit of the last digit of a printed number: what rounding may have changed."""
    return Decimal(1).scaleb(Decimal(text).as_tuple().exponent) / 2


def family(device):
    return device.split("-")[0]


class Collectives(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.points = rows("collectives.csv")
        cls.tables = {row["table"]: row for row in rows("collective_tables.csv")}

    def test_every_point_is_of_a_table_with_a_source(self):
        self.assertEqual({row["table"] for row in self.points}, set(self.tables))
        for table in self.tables.values():
            with self.subTest(table["table"]):
                self.assertRegex(table["source"], r"^https://\S+$")
                self.assertTrue(table["quote"].strip() and table["node_type"].strip())
                self.assertIn(table["library"], ("nccl", "rccl"))

    def test_units_and_words_are_those_of_the_page(self):
        for row in self.points:
            with self.subTest(row["table"], bytes=row["bytes"]):
                self.assertIn(row["operation"], FACTORS)
                self.assertIn(family(row["device"]), MAX_NVLINK_GB_S)
                self.assertIn(row["method"], METHODS)
                self.assertIn(row["in_place"], ("in", "out", "unknown"))
                self.assertIn(row["suspect"], ("yes", "no"))
                gpus, nodes = int(row["gpus"]), int(row["nodes"])
                self.assertTrue(2 <= gpus <= 2048 and 1 <= nodes <= gpus)
                self.assertTrue(1 <= int(row["bytes"]) <= 64 * 2**30)
                self.assertTrue(row["network"] and (nodes > 1 or row["network"] == "none"))
                numbers = [row[key] for key in NUMBERS if row[key]]
                self.assertTrue(numbers)
                for number in numbers:
                    self.assertRegex(number, r"^\d+(\.\d+)?$")

    def test_a_table_is_one_experiment(self):
        seen = set()
        same = defaultdict(set)
        for row in self.points:
            key = (row["table"], row["bytes"], row["in_place"])
            self.assertNotIn(key, seen)
            seen.add(key)
            same[row["table"]].add(tuple(row[key] for key in CONDITIONS))
        self.assertEqual([table for table, kinds in same.items() if len(kinds) > 1], [])

    def test_time_and_bandwidths_agree_within_rounding(self):
        for row in self.points:
            with self.subTest(row["table"], bytes=row["bytes"], in_place=row["in_place"]):
                time, algbw, busbw = (Decimal(row[key] or 0) for key in NUMBERS)
                n = int(row["gpus"])
                factor = Decimal(FACTORS[row["operation"]](n)) / n
                if row["time_us"] and row["algbw_gb_s"]:
                    shortest = time - half_digit(row["time_us"])
                    longest = time + half_digit(row["time_us"])
                    slack = half_digit(row["algbw_gb_s"])
                    kilobytes = Decimal(row["bytes"]) / 1000
                    self.assertTrue(
                        kilobytes / longest - slack <= algbw <= kilobytes / shortest + slack)
                if row["algbw_gb_s"] and row["busbw_gb_s"]:
                    slack = half_digit(row["busbw_gb_s"]) + factor * half_digit(row["algbw_gb_s"])
                    self.assertLessEqual(abs(algbw * factor - busbw), slack)
                if not row["time_us"] and row["busbw_gb_s"]:
                    self.assertGreater(busbw, 0)

    def test_no_bandwidth_is_above_twice_the_links(self):
        """Twice: a switch that reduces lets nccl-tests' factor overstate what the links carry."""
        for row in self.points:
            with self.subTest(row["table"], bytes=row["bytes"]):
                self.assertLess(Decimal(row["busbw_gb_s"] or 0),
                                2 * MAX_NVLINK_GB_S[family(row["device"])])

    def test_every_machine_and_scale_is_there(self):
        good = [row for row in self.points if row["suspect"] == "no"]
        self.assertGreaterEqual(len(good), 300)
        self.assertGreaterEqual(len({table["source"] for table in self.tables.values()}), 15)
        one = {family(row["device"]) for row in good if row["nodes"] == "1"}
        self.assertEqual(one, set(MAX_NVLINK_GB_S))
        self.assertLessEqual({1, 2, 4, 8, 16, 32}, {int(row["nodes"]) for row in good})


class Contention(unittest.TestCase):
    def test_every_case_has_both_figures_and_a_source(self):
        cases = rows("contention.csv")
        self.assertGreaterEqual(len(cases), 40)
        self.assertEqual(len({row["case"] for row in cases}), len(cases))
        machines = {path.stem for path in (FOLDER.parent / "hardware").glob("*.json")}
        for row in cases:
            with self.subTest(row["case"]):
                self.assertRegex(row["source"], r"^https://\S+$")
                self.assertTrue(row["quote"].strip() and row["hardware"].strip())
                self.assertIn(row["unit"], ("us", "GB/s"))
                self.assertIn(row["machine"], machines | {""})
                self.assertGreater(int(row["flows"]), 1)
                for key in ("alone", "together"):
                    self.assertRegex(row[key], r"^\d+(\.\d+)?$")
                # Nothing is much faster beside others.
                order = 1 if row["unit"] == "us" else -1
                alone, together = Decimal(row["alone"]), Decimal(row["together"])
                self.assertGreater((together / alone) ** order, Decimal("0.97"))


class Computation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rows = rows("computation.csv")
        cls.peaks = {
            (family(row["device"]), row["quantity"].removeprefix("peak_")): Decimal(row["value"])
            for row in rows("machines.csv") if row["quantity"].startswith("peak_")}
        # What these multiply is what an H100 multiplies.
        for (device, kind), peak in list(cls.peaks.items()):
            if device == "H100":
                cls.peaks["H800", kind] = peak

    def test_every_row_has_a_source_and_a_shape(self):
        for row in self.rows:
            with self.subTest(**row):
                self.assertRegex(row["source"], r"^https://\S+$")
                self.assertTrue(row["quote"].strip() and row["tool"])
                self.assertIn(row["suspect"], ("yes", "no"))
                self.assertIn(row["causal"], ("yes", "no", ""))
                shape = ("m", "n", "k") if row["kind"] == "gemm" else ("batch", "seq", "head_dim")
                self.assertIn(row["kind"], ("gemm", "attention_fwd", "attention_bwd"))
                for side in shape:
                    self.assertGreater(int(row[side]), 0)
                self.assertTrue(row["tflops"] or row["time_us"])

    def test_no_rate_is_above_the_peak(self):
        for row in self.rows:
            with self.subTest(**row):
                peak = self.peaks[family(row["device"]), row["type"]]
                if row["tflops"]:
                    rate = Decimal(row["tflops"])
                else:
                    sides = [int(row[side]) for side in ("m", "n", "k")]
                    rate = 2 * Decimal(sides[0] * sides[1] * sides[2])
                    rate /= Decimal(row["time_us"]) * 10**6
                self.assertTrue(0 < rate < peak)

    def test_every_row_is_there_once(self):
        keys = [tuple(value for key, value in row.items()
                      if key not in ("tflops", "time_us", "quote", "remarks", "suspect"))
                for row in self.rows]
        self.assertEqual(len(keys), len(set(keys)))

    def test_every_machine_is_there(self):
        good = [row for row in self.rows if row["suspect"] == "no"]
        self.assertLessEqual(set(MAX_NVLINK_GB_S), {family(row["device"]) for row in good})
        self.assertGreaterEqual(len(good), 60)
        self.assertIn("attention_bwd", {row["kind"] for row in good})


class Machines(unittest.TestCase):
    def test_every_figure_has_a_unit_and_a_source(self):
        units = {"TFLOP/s dense", "GB", "GB/s", "TB/s", "GB/s one way", "GB/s one way per GPU",
                 "GPUs", "us"}
        for row in rows("machines.csv"):
            with self.subTest(**row):
                self.assertIn(row["unit"], units)
                self.assertGreater(Decimal(row["value"]), 0)
                self.assertRegex(row["source"], r"^https://\S+$")
                self.assertTrue(row["quote"].strip())
                self.assertRegex(row["primary"], r"^(https://\S+)?$")

    def test_every_machine_has_its_main_figures(self):
        figures = defaultdict(set)
        for row in rows("machines.csv"):
            figures[family(row["device"])].add(row["quantity"])
        main = {"peak_bf16", "hbm_capacity", "hbm_bandwidth", "link", "domain", "network",
                "host_link"}
        for device in MAX_NVLINK_GB_S:
            with self.subTest(device):
                self.assertLessEqual(main, figures[device])

    def test_the_links_are_those_that_the_test_of_collectives_takes(self):
        links = {family(row["device"]): int(row["value"]) for row in rows("machines.csv")
                 if row["quantity"] == "link"}
        self.assertEqual(links, MAX_NVLINK_GB_S)


if __name__ == "__main__":
    unittest.main()
