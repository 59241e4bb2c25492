"""What bench_network predicts for every published point, computed again from docs/hardware.md.

The latencies are those of data/published/machines.csv, the rates those of data/hardware. Rings are
walked rank by rank to count their steps. Also: tools/accuracy has written docs/accuracy.md.
"""

import csv
import io
import json
import math
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = os.environ["SHIPLAP_BENCH_NETWORK"]
PROTOCOLS = ("LL", "LL128", "Simple")
FORCED = {"Ring": "ring", "Tree": "tree", "NVLS": "NVLS", "NVLSTree": "NVLSTree"}


def rows(path):
    with open(ROOT / path, newline="") as file:
        return list(csv.DictReader(file))


NCCL = {row["quantity"].removeprefix("nccl_"): float(row["value"]) for row in
        rows("data/published/machines.csv") if row["quantity"].startswith("nccl_")}
FABRICS = {row["fabric"]: float(row["latency"]) for row in rows("data/fabrics.csv")}


class Machine:
    def __init__(self, name, network):
        text = json.loads((ROOT / f"data/hardware/{name}.json").read_text())
        self.devices = text["node"]["devices"]
        self.inner, self.outer = text["networks"]
        self.size = self.inner["size"]
        fabric = network.split("; ")[-1]
        rate = re.match(r"(.+?) (\d+)x(\d+) Gbps per (?:node|tray)", fabric)
        if rate:
            self.outer["bandwidth"] = int(rate[2]) * int(rate[3]) / 8 / self.devices
            self.outer["collectives"]["latency"] = FABRICS.get(
                rate[1], self.outer["collectives"]["latency"])

    def rate(self, network):
        return network["bandwidth"] * 1e3 * network["efficiency"]  # bytes per us


class Group:
    """The first ranks of as many domains as are needed, equally many of each."""

    def __init__(self, machine, ranks):
        self.machine, self.ranks = machine, ranks
        self.domains = math.ceil(ranks / machine.size)
        self.per_domain = math.ceil(ranks / self.domains)
        self.per_node = min(self.per_domain, machine.devices)
        self.nodes = math.ceil(self.per_domain / self.per_node)
        self.inner, self.outer = machine.inner["collectives"], machine.outer["collectives"]
        self.rails = machine.rate(machine.outer) * self.per_domain

    def factor(self, where):
        return {"link": self.inner["latency"], "near": 1,
                "net": self.outer["latency"]}[where]

    def crossings(self):
        """The kinds of the edges of a ring through all ranks; a path has all but its cheapest."""
        edges = []
        for domain in range(self.domains):
            for node in range(self.nodes):
                members = min(self.per_node, self.per_domain - node * self.per_node)
                edges += ["link"] * (members - 1)
                last = node == self.nodes - 1
                edges.append(("net" if self.domains > 1 else "link" if self.nodes == 1 else None)
                             if last else "near")
        return [edge for edge in edges if edge]

    def ring_latency(self, protocol, turns):
        edges = self.crossings()
        counts = {kind: edges.count(kind) for kind in ("near", "net")}
        near = min(counts["near"], self.ranks - 1)
        net = min(counts["net"], self.ranks - 1 - near)
        links = self.ranks - 1 - near - net
        hop = {"link": NCCL[f"hop_ring_nvlink_{protocol}"], "net": NCCL[f"hop_ring_net_{protocol}"]}
        return (self.factor("link") * (NCCL[f"base_ring_{protocol}"] + turns * links * hop["link"])
                + turns * hop["net"] * (near + self.factor("net") * net))

    def share(self, protocol, network):
        if network is self.machine.outer and protocol != "Simple":
            return self.outer[protocol.lower()]
        return {"LL": 1 / 2, "LL128": 15 / 16, "Simple": 1}[protocol]

    def ramp(self, protocol, moved):
        total = self.inner["ramp"] + (self.outer["ramp"] if self.domains > 1 else 0)
        return total * math.sqrt(moved / 1e6) if protocol == "Simple" else 0

    def ring(self, protocol, moved, turns):
        rates = []
        if self.per_domain > 1:
            rates.append(self.machine.rate(self.machine.inner)
                         * self.share(protocol, self.machine.inner))
        if self.domains > 1:
            rates.append(self.rails * self.share(protocol, self.machine.outer))
        return self.ring_latency(protocol, turns) + moved / min(rates) + self.ramp(protocol, moved)

    def tree_bytes(self, size):
        return size if self.domains == 2 else 2 * size

    def tree(self, protocol, size):
        deep = [math.floor(math.log2(count)) for count in (self.nodes, self.domains)]
        link, net = NCCL[f"hop_tree_nvlink_{protocol}"], NCCL[f"hop_tree_net_{protocol}"]
        latency = (self.factor("link") * (NCCL[f"base_tree_{protocol}"]
                                          + 2 * (self.per_node - 1) * link)
                   + 2 * net * (deep[0] + self.factor("net") * deep[1]))
        times = [0]
        if self.per_domain > 1:
            times.append(2 * size / (self.machine.rate(self.machine.inner)
                                     * self.share(protocol, self.machine.inner)))
        if self.domains > 1:
            times.append(self.tree_bytes(size)
                         / (self.rails * self.share(protocol, self.machine.outer)))
        return latency + max(times) + self.ramp(protocol, size)

    def nvls(self, size):
        switch = self.inner["in_switch"]
        root = math.sqrt(size / 1e6)
        within = size / (self.machine.inner["bandwidth"] * 1e3 * switch["share"])
        base = self.factor("link") * NCCL["nvls_nvlink"] + switch["ramp"] * root
        if self.domains == 1:
            return base + within
        hops = 2 * math.floor(math.log2(self.domains)) * NCCL["nvlstree_net"] * self.factor("net")
        return (base + hops + self.outer["ramp"] * root
                + max(within, self.tree_bytes(size) / self.rails))

    def pairwise(self, size):
        within = (self.per_domain - 1) / self.ranks * size
        between = (self.ranks - self.per_domain) / self.ranks * size
        latency = self.factor("link") * (NCCL["base_ring_LL"] + (self.per_domain - 1) / 4
                                         * NCCL["hop_ring_nvlink_LL"])
        times = [within / self.machine.rate(self.machine.inner)]
        if self.domains > 1:
            latency += (self.factor("net") * NCCL["hop_ring_net_LL"]
                        * (1 + (self.ranks - self.per_domain) / 4))
            times.append(between / self.machine.rate(self.machine.outer))
        return latency + max(times) + self.ramp("Simple", within + between)

    def message(self, size):
        near = self.domains == 1
        network = self.machine.inner if near else self.machine.outer
        ways = network["ops"]["p2p"][0] if "ops" in network else 1
        time = size * ways / self.machine.rate(network)
        few = network["collectives"].get("one_peer")
        if few:
            time = max(time, min(size, few["MiB"] * 2**20) / few["GBps"] / 1e3)
        hop = (self.factor("link") * NCCL["hop_ring_nvlink_LL"] if near
               else self.factor("net") * NCCL["hop_ring_net_LL"])
        return self.factor("link") * NCCL["base_ring_LL"] + hop + time


def all_times(group, operation, size):
    """By algorithm and protocol."""
    n = group.ranks
    if operation == "sendrecv":
        return {("pairwise", "Simple"): group.message(size)}
    if operation == "all_to_all":
        return {("pairwise", "Simple"): group.pairwise(size)}
    turns = 2 if operation == "all_reduce" else 1
    times = {("ring", protocol): group.ring(protocol, turns * (n - 1) / n * size, turns)
             for protocol in PROTOCOLS}
    if operation == "all_reduce":
        for protocol in PROTOCOLS:
            times["tree", protocol] = group.tree(protocol, size)
        if "in_switch" in group.inner and group.per_domain > 4:
            name = "NVLS" if group.domains == 1 else "NVLSTree"
            times[name, "Simple"] = group.nvls(size)
    return times


class Collectives(unittest.TestCase):
    def test_every_prediction_is_that_of_the_formulas(self):
        text = subprocess.run([PROGRAM, "--points"], check=True, capture_output=True,
                              text=True).stdout
        points = list(csv.DictReader(io.StringIO(text)))
        forced = {row["table"]: (FORCED.get(row["algorithm"]),
                                 row["protocol"] if row["protocol"] == "LL128" else None)
                  for row in rows("data/published/collectives.csv")}
        self.assertGreater(len(points), 1900)
        for point in points:
            group = Group(Machine(point["machine"], point["network"]), int(point["gpus"]))
            times = all_times(group, point["operation"], int(point["bytes"]))
            algorithm, protocol = forced[point["table"]]
            allowed = {key: time for key, time in times.items()
                       if algorithm in (None, key[0]) and protocol in (None, key[1])} or times
            chosen = min(allowed, key=allowed.get)
            with self.subTest(point["table"], bytes=point["bytes"]):
                self.assertAlmostEqual(float(point["predicted_us"]) / allowed[chosen], 1, places=5)

    def test_the_page_shows_what_is_predicted(self):
        done = subprocess.run([sys.executable, ROOT / "tools/accuracy", "--check"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
