"""Faults over real links: ranks, servers and a store in network namespaces of their own, and an audit of every row.

    make chaos CHAOS_SEED=7 CHAOS_SECONDS=300

Needs Linux and root (namespaces, tunnels, mounts, cgroups); where these are missing it says which and exits with 77.
"""
