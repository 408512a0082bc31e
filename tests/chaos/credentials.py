"""The secrets of one run: a CA, certificates of servers, tokens, the key of tickets; and the exchange of each."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path


def openssl(*arguments: str | Path) -> None:
    """Runs ``openssl``."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def private(path: Path, text: str) -> None:
    """Writes a file that only its owner reads, in one step."""
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.chmod(0o600)
    os.replace(aside, path)


class Credentials:
    """All files, below one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.ca, self.ca_key = directory / "ca.pem", directory / "ca-key.pem"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                "-subj", "/CN=chaos", "-keyout", self.ca_key, "-out", self.ca)  # fmt: skip
        self.tokens, self.token, self.tickets = directory / "tokens", directory / "token", directory / "tickets.key"
        self.made = 0
        self.keys = [secrets.token_hex(32)]
        self.words = [secrets.token_hex(16)]
        self._write_keys()
        self._write_words()

    def certificate(self, host: str) -> tuple[Path, Path]:
        """The paths of a server's certificate and key."""
        return self.directory / f"{host}.pem", self.directory / f"{host}-key.pem"

    def issue(self, host: str, address: str) -> None:
        """Makes a certificate for a server, in place of the one before it."""
        self.made += 1
        cert, key = self.certificate(host)
        request, names = self.directory / "request.pem", self.directory / "names"
        new_cert, new_key = self.directory / "new.pem", self.directory / "new-key.pem"
        names.write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth\n")
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={host}",
                "-keyout", new_key, "-out", request)  # fmt: skip
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.ca_key, "-days", "7",
                "-set_serial", str(1000 + self.made), "-extfile", names, "-out", new_cert)  # fmt: skip
        # The server sees one new and one old file for a moment, and waits for the pair.
        os.replace(new_key, key)
        os.replace(new_cert, cert)

    def serial(self) -> int:
        """Returns the serial number of the last certificate."""
        return 1000 + self.made

    def next_key(self, stage: int) -> None:
        """Exchanges the key of tickets in three stages: 0 adds it, 1 puts it first, 2 removes the old one."""
        if stage == 0:
            self.keys = [self.keys[0], secrets.token_hex(32)]
        elif stage == 1:
            self.keys.reverse()
        else:
            self.keys = self.keys[:1]
        self._write_keys()

    def next_token(self, stage: int) -> None:
        """Exchanges the token of the ranks: 0 adds it for the servers, 1 gives it to the ranks, 2 removes the old one."""
        if stage == 0:
            self.words.append(secrets.token_hex(16))
        elif stage == 2:
            self.words = self.words[-1:]
        self._write_words(ranks=stage >= 1)

    def _write_keys(self) -> None:
        private(self.tickets, "".join(f"hex:{key}\n" for key in self.keys))

    def _write_words(self, *, ranks: bool = True) -> None:
        private(self.tokens, "".join(f"trainers:{word}\n" for word in self.words))
        if ranks:
            private(self.token, self.words[-1])
