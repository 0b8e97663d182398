"""A Ray cluster of two nodes on this machine, each with one core.

Prints its address. Each line of standard input kills the second node, as a failure would; the end
of the input ends the cluster.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

head = {"num_cpus": 1, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
second = cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
for _ in sys.stdin:
    cluster.remove_node(second, allow_graceful=False)
    print("killed", flush=True)
cluster.shutdown()
