#!/usr/bin/env bash
# Reads the workflows, the chart and the manifests with the tools that know them. What is not installed is named and left out; with
# NEED=all that is a failure.
#
#   make check-deploy
set -euo pipefail
cd "$(dirname "$0")/.."

has() {
    command -v "$1" >/dev/null && return
    echo "not checked: $2 (needs $1)" >&2
    [[ ${NEED:-} != all ]] || exit 1
    return 1
}

# By the schemas of Kubernetes that come with the tool: no network. Resources of operators are none of its own.
conform() { kubernetes-validate --strict --quiet "$@"; }

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

if has actionlint "workflows"; then
    actionlint
    echo "workflows: read"
fi

if has helm "the chart"; then
    chart=deploy/helm/bowstring
    sets=(--set 'config=[datasets.photos]
url = "s3://bucket/photos/"')
    secrets=(--set secret=tokens --set tlsSecret=certificate)
    more=(--set replicas=3 --set-json 'networkPolicy.metricsFrom=[{"namespaceSelector": {}}]'
        --set cache.size=500Gi --set cache.storageClass=local --set-json 'warm=[{"args": ["s3://bucket/photos/", "--batch-size", "256"]}]'
        --set-json 'extraVolumes=[{"name": "mounts", "configMap": {"name": "mounts"}}]'
        --set-json 'extraVolumeClaimTemplates=[{"metadata": {"name": "state"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}}]'
        --set-json 'extraVolumeMounts=[{"name": "mounts", "mountPath": "/etc/mounts"}, {"name": "state", "mountPath": "/var/lib/bowstring"}]'
        --set-json 'env=[{"name": "AWS_REGION", "value": "eu-central-1"}]' --set serviceAccount.annotations.role=x --set podAnnotations.a=b)
    # Built from source, helm takes itself for one of an old Kubernetes.
    template() { helm template --kube-version 1.31.0 "$@"; }
    helm lint --strict "$chart" "${sets[@]}" "${secrets[@]}"
    template bowstring "$chart" "${sets[@]}" "${secrets[@]}" >"$made/chart-secure.yaml"
    template data "$chart" "${sets[@]}" --set insecure=true "${more[@]}" >"$made/chart-more.yaml"
    template data "$chart" "${sets[@]}" --set insecure=true --set networkPolicy.enabled=false --set serviceAccount.create=false >"$made/chart-less.yaml"
    template data "$chart" "${sets[@]}" --set insecure=true --set serviceMonitor.enabled=true --set adminSecret=operators >"$made/monitored.yaml"
    grep -q "kind: ServiceMonitor" "$made/monitored.yaml"
    grep -q 'credentials: { name: "operators", key: token }' "$made/monitored.yaml"
    sed '/^kind: ServiceMonitor/,$d' "$made/monitored.yaml" | sed '$d' >"$made/chart-monitored.yaml"
    # No dataset, no secrets, misspelt values, nothing to warm.
    served="--set config=[datasets.a] --set insecure=true"
    for refused in "${secrets[*]}" "--set config=[datasets.a]" "$served --set replica=1" "$served --set cache.sizes=1Gi" \
        "$served --set-json warm=[{\"args\":[\"data\"]}]"; do
        # shellcheck disable=SC2086 # words on purpose
        if template data "$chart" $refused >/dev/null 2>&1; then
            echo "the chart takes $refused" >&2
            exit 1
        fi
    done
    if has kubernetes-validate "what the chart makes"; then
        conform "$made"/chart-*.yaml
        echo "the chart: rendered and valid"
    fi
fi

if has kubernetes-validate "the manifests"; then
    conform deploy/kustomize/{base/service,base/statefulset,monitoring/network}.yaml deploy/kubernetes/sidecar.yaml
    echo "the manifests: valid"
fi

if has kubectl "what kustomize makes" && has kubernetes-validate "what kustomize makes"; then
    for overlay in base cache monitoring; do
        kubectl kustomize "deploy/kustomize/$overlay" >"$made/$overlay.yaml"
        conform --no-warn "$made/$overlay.yaml"
    done
    grep -q "kind: ServiceMonitor" "$made/monitoring.yaml"
    # The pods read the file under the name that its content gave it, and have the image of the version.
    name=$(sed -n 's/^  name: \(bowstring-[a-z0-9]*\)$/\1/p' "$made/base.yaml")
    grep -q "^ *name: $name$" <(sed '/^kind: ConfigMap/,/^---/d' "$made/base.yaml")
    grep -q "image: ghcr.io/bowstring-data/bowstring:v" "$made/base.yaml"
    [[ $(grep -c "image: ghcr.io/bowstring-data/bowstring:v" "$made/cache.yaml") == 2 ]]
    grep -q 'cache_bytes = "450GiB"' "$made/cache.yaml"
    echo "what kustomize makes: valid"
fi

if has kubernetes-validate "the TrainJob"; then
    # Kubeflow's classes are a package beside that tool: `pipx inject kubernetes-validate kubeflow-trainer-api`.
    python=$(sed -n '1s/^#! *//p' "$(command -v kubernetes-validate)")
    if "$python" -c "import kubeflow_trainer_api" 2>/dev/null; then
        "$python" scripts/trainjob.py deploy/kubernetes/trainjob.yaml >"$made/jobs.yaml"
        conform "$made/jobs.yaml"
        echo "the TrainJob: valid"
    else
        echo "not checked: the TrainJob (needs kubeflow-trainer-api where kubernetes-validate is installed)" >&2
        [[ ${NEED:-} != all ]] || exit 1
    fi
fi

if has promtool "the alerts"; then
    promtool check config deploy/prometheus/prometheus.yaml
    promtool test rules deploy/prometheus/alerts_test.yaml
    echo "the alerts: valid, and they come when they should"
fi
