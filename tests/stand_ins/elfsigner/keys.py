"""Keys of the stand-in signer for tests: in memory, and as the files that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from itertools import combinations, cycle
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from tests.stand_ins.elfsigner.certify import (
    AUTHORITY_NAME,
    HARDWARE_ID,
    LEAF_NAME,
    ROOT_NAME,
    SOFTWARE_ID,
    certify,
)
from tests.stand_ins.elfsigner.mbn_writer import Key

# Of 1024 bits, the two highest set, and 2 modulo 3, as an exponent of 3 wants them. To find two
# takes a quarter of a second.
PRIMES = [int(line, 16) for line in Path(__file__).with_name("primes.txt").read_text().split()]
PAIRS = cycle(combinations(PRIMES, 2))


def make_known_key() -> rsa.RSAPrivateKey:
    """Another at each call, of 153, with the size and the exponent of the vendor's test keys."""
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


@cache
def make_files() -> Mapping[str, bytes]:
    """The files that the stand-in reads: the numbers of a key, and its chain."""
    numbers = asdict(make_key())
    chain = numbers.pop("chain")
    return {"valid.der": chain, "valid.json": json.dumps(numbers).encode()}


def make_key(days: int = 3650) -> Key:
    """A leaf, an intermediate and a root; the leaf ends ``days`` from now."""
    root, authority, key = make_known_key(), make_known_key(), make_known_key()
    chain = certify(LEAF_NAME, key, AUTHORITY_NAME, authority, days)
    chain += certify(AUTHORITY_NAME, authority, ROOT_NAME, root)
    chain += certify(ROOT_NAME, root, ROOT_NAME, root)
    numbers = key.private_numbers()
    modulus = numbers.public_numbers.n
    return Key(modulus, numbers.d, chain, SOFTWARE_ID, HARDWARE_ID, numbers.p)
