"""Access to rows on Spark's executors: for ranks with the token, encrypted beyond this machine, and for nobody else."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from typing import Any

import bowstring
import bowstring.spark
import pytest
from bowstring.flight import Connection

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")
from test_spark_serve import WAIT, Rank, epochs, exact, exact_steps, parts, ranks, serve

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]

TOKEN = "a-token-of-the-tests"
NAME = "rows.example"


def certificate(directory: pathlib.Path, names: str) -> dict[str, str]:
    """Makes options of TLS: a new authority, and its certificate for some names."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make certificates with")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    (directory / "names").write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
    run("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    run("req", *new, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=rows")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    run("x509", "-req", "-in", "request.pem", "-out", "cert.pem", *signed)
    files = {"tls_cert": "cert.pem", "tls_key": "key.pem", "ca": "ca.pem"}
    return {name: str(directory / file) for name, file in files.items()}


def shown(directory: pathlib.Path, name: str) -> dict[str, str]:
    """Makes an authority for clients, with a client's certificate and key signed by it."""
    place = directory / name
    place.mkdir()
    made = certificate(place, f"DNS:{name}")
    return {"client_ca": made["ca"], "cert": made["tls_cert"], "key": made["tls_key"]}


def batches(url: str, storage: dict[str, str], rows: list[Any]) -> None:
    """Reads batches as a rank does."""
    with bowstring.Loader(url, batch_size=5, rank=0, world_size=1, storage_options=storage, timeout=3) as loader:
        rows.extend(loader)


def stored(url: str, storage: dict[str, str], rows: list[Any]) -> None:
    """Reads stored rows."""
    with Connection(url, storage, timeout=3) as connection:
        rows.extend(connection.rows("rows"))


def refused(url: str, storage: dict[str, str], why: str, *kinds: type[bowstring.Error]) -> None:
    """Checks that an executor gives no row to a client with these options."""
    rows: list[Any] = []
    for read in (batches, stored):
        with pytest.raises(kinds, match=why):
            read(url, storage, rows)
    assert rows == []


@pytest.mark.parametrize("named", [False, True])
def test_beyond_loopback_rows_are_encrypted_and_need_the_token(spark: Any, tmp_path: pathlib.Path, named: bool) -> None:
    """With one certificate for the addresses of all hosts, and with one for a common name."""
    tls = certificate(tmp_path, f"DNS:{NAME}" if named else "IP:127.0.0.1,DNS:localhost")
    trusting = {"ca": tls["ca"], **({"server_name": NAME} if named else {})}
    options = {**tls, "listen": "0.0.0.0:0", "token": TOKEN, **({"server_name": NAME} if named else {})}
    with serve(spark, 2, **options) as handle:
        assert handle.url.startswith("grpc+tls://")
        assert "0.0.0.0" not in handle.url, "nobody can connect to that"
        found = parts(handle, token=TOKEN, **trusting)
        for part in found:
            url = part["url"]
            assert url.startswith("grpc+tls://")
            refused(url, trusting, "token", bowstring.RemoteError)
            refused(url, {**trusting, "token": "another-token-of-tests"}, "token", bowstring.RemoteError)
        # A client without the authority cannot connect, so it waits; a client without TLS gets an error.
        unknown = (bowstring.RemoteError, bowstring.TimeoutError)
        refused(url, {"token": TOKEN}, "127.0.0.1", *unknown)
        refused(url.replace("grpc+tls", "grpc"), {"token": TOKEN}, "127.0.0.1", bowstring.ConfigError, *unknown)
        with pytest.raises(bowstring.RemoteError, match="token"):
            bowstring.spark.connect(handle.url, 0, storage_options=trusting, timeout=WAIT)
        with pytest.raises(bowstring.TimeoutError, match=r"did not serve .*\("):
            bowstring.spark.connect(handle.url, 0, storage_options={"token": TOKEN}, timeout=2)

        def work(rank: int) -> Any:
            with handle.loader(rank) as loader:
                return epochs(loader, 1)

        exact(ranks(2, work))
        handle.wait(WAIT)


def test_ranks_in_other_processes_take_the_token_from_the_environment(
    spark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOWSTRING_TOKEN", TOKEN)
    with serve(spark, 2, token=TOKEN) as handle:
        running = [Rank(handle.url, rank, tmp_path) for rank in range(2)]
        try:
            found = [rank.end() for rank in running]
        finally:
            for rank in running:
                rank.process.kill()
        monkeypatch.delenv("BOWSTRING_TOKEN")
        with pytest.raises(bowstring.RemoteError, match="token"):
            Connection(handle.url).action("spark.rank", {"rank": 0, "wait": 0})
        handle.wait(WAIT)
    exact_steps(found)
    assert "BOWSTRING_TOKEN" not in os.environ


def test_rows_are_never_served_openly_by_accident(spark: Any, tmp_path: pathlib.Path) -> None:
    tls = certificate(tmp_path, "IP:127.0.0.1")
    for options, why in [
        ({}, "reached by others"),
        ({"token": TOKEN}, "reached by others"),
        (tls, "reached by others"),
        ({"token": "short", **tls}, "16 characters"),
        ({"token": TOKEN, "tls_cert": tls["tls_cert"]}, "option tls_key"),
    ]:
        with pytest.raises(bowstring.ConfigError, match=why):
            serve(spark, 1, listen="0.0.0.0:0", **options)
    with pytest.raises(bowstring.ConfigError, match="option tls_cert"):
        serve(spark, 1, tls_key=tls["tls_key"])
    with pytest.raises(bowstring.ConfigError, match="each rank's own"):
        serve(spark, 1, threads=2)
    with serve(spark, 1, listen="0.0.0.0:0", insecure=True) as handle, handle.loader(0) as loader:
        exact([epochs(loader, 1)])


@pytest.mark.parametrize("token", [None, TOKEN])
def test_certificates_of_clients_open_driver_and_executors(
    spark: Any, tmp_path: pathlib.Path, token: str | None
) -> None:
    tls = certificate(tmp_path, "IP:127.0.0.1,DNS:localhost")
    ours, others = shown(tmp_path, "ours"), shown(tmp_path, "others")
    with_token = {} if token is None else {"token": token}
    trusting = {"ca": tls["ca"], **with_token}
    with serve(spark, 2, listen="0.0.0.0:0", **tls, **ours, **with_token) as handle:
        mine = {**trusting, "cert": ours["cert"], "key": ours["key"]}
        found = parts(handle, **mine)
        unknown = (bowstring.RemoteError, bowstring.TimeoutError, bowstring.ClosedError)
        for url in [part["url"] for part in found]:
            refused(url, trusting, "127.0.0.1", *unknown)
            refused(url, {**trusting, "cert": others["cert"], "key": others["key"]}, "127.0.0.1", *unknown)
            if token is not None:
                refused(url, {name: value for name, value in mine.items() if name != "token"}, "token", *unknown)
        with pytest.raises(bowstring.TimeoutError, match="did not serve"):
            bowstring.spark.connect(handle.url, 0, storage_options=trusting, timeout=2)

        def work(rank: int) -> Any:
            # One rank in this process, one as if in another.
            if rank == 0:
                with handle.loader(rank) as loader:
                    return epochs(loader, 1)
            with bowstring.spark.connect(handle.url, rank, storage_options=mine, timeout=WAIT) as loader:
                return epochs(loader, 1)

        exact(ranks(2, work))
        handle.wait(WAIT)


def test_a_hand_off_whose_tasks_have_no_certificate_is_refused(spark: Any, tmp_path: pathlib.Path) -> None:
    tls, ours = certificate(tmp_path, "IP:127.0.0.1"), shown(tmp_path, "ours")
    for given, option in [
        ({**tls, "client_ca": ours["client_ca"]}, "cert"),
        ({**tls, "client_ca": ours["client_ca"], "cert": ours["cert"]}, "key"),
        ({**tls, "key": ours["key"]}, "cert"),
        (ours, "client_ca"),
    ]:
        with pytest.raises(bowstring.ConfigError) as caught:
            serve(spark, 1, **given)
        assert caught.value.option == option
