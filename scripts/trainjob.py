"""Reads a file of Kubeflow Trainer by the classes of its API, and prints the jobs that its runtimes make.

python scripts/trainjob.py deploy/kubernetes/trainjob.yaml > jobs.yaml      needs kubeflow-trainer-api and PyYAML
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from kubeflow_trainer_api import models


def lost(given: Any, read: Any, where: str) -> list[str]:
    """Returns the places of a document that its class has no field for."""
    if isinstance(given, dict):
        return [
            at
            for key, value in given.items()
            for at in (lost(value, read[key], f"{where}.{key}") if key in read else [f"{where}.{key}"])
        ]
    if isinstance(given, list):
        return [
            at
            for number, (one, other) in enumerate(zip(given, read, strict=True))
            for at in lost(one, other, f"{where}[{number}]")
        ]
    return []


def main(path: str) -> None:
    """Reads a file; a document that is not of its class ends the program."""
    jobs = []
    for document in yaml.safe_load_all(Path(path).read_text("utf-8")):
        kind = document["kind"]
        # A class takes what it does not know and drops it.
        read = getattr(models, f"TrainerV1alpha1{kind}").from_dict(document)
        if unknown := lost(document, read.to_dict(), kind):
            sys.exit(f"{path}: no such fields: {', '.join(unknown)}")
        if kind == "TrainingRuntime":
            for job in document["spec"]["template"]["spec"]["replicatedJobs"]:
                template = job["template"]
                # JobSet's own default; a Job has to name one.
                template["spec"]["template"]["spec"].setdefault("restartPolicy", "OnFailure")
                template.setdefault("metadata", {})["name"] = job["name"]
                jobs.append({"apiVersion": "batch/v1", "kind": "Job", **template})
    yaml.safe_dump_all(jobs, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
