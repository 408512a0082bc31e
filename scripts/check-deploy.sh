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

if has actionlint "workflows"; then
    actionlint
    echo "workflows: read"
fi

if has helm "the chart"; then
    chart=deploy/helm/bowstring
    rendered=$(mktemp -d)
    trap 'rm -rf "$rendered"' EXIT
    sets=(--set 'config=[datasets.photos]
url = "s3://bucket/photos/"')
    secrets=(--set secret=tokens --set tlsSecret=certificate)
    more=(--set replicas=3 --set-json 'networkPolicy.metricsFrom=[{"namespaceSelector": {}}]'
        --set-json 'env=[{"name": "AWS_REGION", "value": "eu-central-1"}]' --set serviceAccount.annotations.role=x --set podAnnotations.a=b)
    # Built from source, helm takes itself for one of an old Kubernetes.
    template() { helm template --kube-version 1.31.0 "$@"; }
    helm lint --strict "$chart" "${sets[@]}" "${secrets[@]}"
    template bowstring "$chart" "${sets[@]}" "${secrets[@]}" >"$rendered/secure.yaml"
    template data "$chart" "${sets[@]}" --set insecure=true "${more[@]}" >"$rendered/more.yaml"
    template data "$chart" "${sets[@]}" --set insecure=true --set networkPolicy.enabled=false --set serviceAccount.create=false >"$rendered/less.yaml"
    template data "$chart" "${sets[@]}" --set insecure=true --set serviceMonitor.enabled=true | grep -q "kind: ServiceMonitor"
    # No dataset, no secrets, a misspelt value.
    for refused in "${secrets[*]}" "--set config=[datasets.a]" "--set config=[datasets.a] --set insecure=true --set replica=1"; do
        # shellcheck disable=SC2086 # words on purpose
        if template data "$chart" $refused >/dev/null 2>&1; then
            echo "the chart takes $refused" >&2
            exit 1
        fi
    done
    if has kubernetes-validate "what the chart makes"; then
        conform "$rendered"/*.yaml
        echo "the chart: rendered and valid"
    fi
fi

if has kubernetes-validate "the manifests"; then
    conform deploy/kustomize/base/service.yaml deploy/kustomize/base/statefulset.yaml
    echo "the manifests: valid"
fi

if has promtool "the alerts"; then
    promtool check config deploy/prometheus/prometheus.yaml
    promtool test rules deploy/prometheus/alerts_test.yaml
    echo "the alerts: valid, and they come when they should"
fi
