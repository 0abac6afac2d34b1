"""Keys of the stand-in signer for tests: in memory, and as the files that it reads."""

from __future__ import annotations

import json
import tempfile
from itertools import combinations, cycle
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from tests.stand_ins.elfsigner.certify import HARDWARE_ID, SOFTWARE_ID, make_leaf, write_authority
from tests.stand_ins.elfsigner.mbn_writer import Key

# Of 1024 bits, the two highest set, and 2 modulo 3, as an exponent of 3 wants them. To find two
# takes a quarter of a second.
PRIMES = [int(line, 16) for line in Path(__file__).with_name("primes.txt").read_text().split()]
PAIRS = cycle(combinations(PRIMES, 2))


def make_known_key() -> rsa.RSAPrivateKey:
    """Another at each call, of 153, with the size and the exponent of make_rsa_key's."""
    p, q = next(PAIRS)
    d = rsa.rsa_recover_private_exponent(3, p, q)
    return rsa.RSAPrivateNumbers(
        p,
        q,
        d,
        rsa.rsa_crt_dmp1(d, p),
        rsa.rsa_crt_dmq1(d, q),
        rsa.rsa_crt_iqmp(p, q),
        rsa.RSAPublicNumbers(3, p * q),
    ).private_key(unsafe_skip_rsa_key_validation=True)


def write_keys(directory: Path) -> None:
    """Write an authority, and valid.{json,der} and expired.{json,der} of it."""
    write_authority(directory, make_known_key)
    for stem, days in (("valid", 3650), ("expired", -1)):
        modulus, exponent, chain = make_leaf(directory, days, make_known_key)
        numbers = {
            "modulus": modulus,
            "private_exponent": exponent,
            "software_id": SOFTWARE_ID,
            "hardware_id": HARDWARE_ID,
        }
        (directory / f"{stem}.json").write_text(json.dumps(numbers))
        (directory / f"{stem}.der").write_bytes(chain)


def make_key(days: int = 3650) -> Key:
    """A leaf, an intermediate and a root; the leaf ends ``days`` from now."""
    with tempfile.TemporaryDirectory() as scratch:
        write_authority(Path(scratch), make_known_key)
        leaf = make_leaf(Path(scratch), days, make_known_key)
        return Key(*leaf, SOFTWARE_ID, HARDWARE_ID)
