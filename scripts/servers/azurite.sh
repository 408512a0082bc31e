#!/bin/sh
# Azure's emulator Azurite on 127.0.0.1, in the foreground; ready when the port opens.
# usage: azurite.sh DIR [PORT]     needs: Node and npm, network once
# Then BOWSTRING_AZURITE=http://127.0.0.1:PORT runs the test of it (python/tests/test_mounts.py).
set -e
mkdir -p "$1"
cd "$1"
[ -e .done ] || { npm install --no-fund --no-audit --silent --prefix . azurite@3.37.0 && touch .done; }
port=${2:-10000}
exec node_modules/.bin/azurite-blob --silent --skipApiVersionCheck --disableTelemetry --inMemoryPersistence --blobHost 127.0.0.1 --blobPort "$port"
