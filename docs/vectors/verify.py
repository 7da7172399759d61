#!/usr/bin/env python3
"""An independent verifier of everything in this folder: no line of it comes from the product.

    verify.py [FILE...]      all files of this folder when none is named

Needs Python 3.9, PyNaCl for Ed25519, and the program zstd for bundles. It says what is wrong with the first file that is not
valid and exits with 1.
"""
import base64
import hashlib
import io
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import urllib.parse

import nacl.exceptions
import nacl.signing

PUBLIC_KEY = nacl.signing.SigningKey(b"\x42" * 32).verify_key


class Invalid(Exception):
    pass


def need(holds, what):
    if not holds:
        raise Invalid(what)


# ------------------------------------------------------------------ BLAKE3, without keys

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
LANES = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15), (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def compress(chaining, block, counter, flags):
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    state = [*chaining, *IV[:4], counter & 0xFFFFFFFF, counter >> 32, len(block), flags]

    def rotated(value, bits):
        return (value >> bits | value << (32 - bits)) & 0xFFFFFFFF

    for round_ in range(7):
        for n, (a, b, c, d) in enumerate(LANES):
            for word, right, left in ((words[2 * n], 16, 12), (words[2 * n + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & 0xFFFFFFFF
                state[d] = rotated(state[d] ^ state[a], right)
                state[c] = (state[c] + state[d]) & 0xFFFFFFFF
                state[b] = rotated(state[b] ^ state[c], left)
        words = [words[n] for n in PERMUTATION]
    return [state[n] ^ state[n + 8] for n in range(8)]


def blake3(data):
    def subtree(data, counter, root):
        if len(data) <= 1024:
            blocks = [data[n:n + 64] for n in range(0, len(data), 64)] or [b""]
            value = list(IV)
            for n, block in enumerate(blocks):
                last = n == len(blocks) - 1
                flags = CHUNK_START * (n == 0) | CHUNK_END * last | ROOT * (root and last)
                value = compress(value, block, counter, flags)
            return value
        left = 1024
        while left * 2 < len(data):
            left *= 2
        halves = subtree(data[:left], counter, False) + subtree(data[left:], counter + left // 1024, False)
        return compress(list(IV), struct.pack("<16I", *halves), 0, PARENT | ROOT * root)

    return struct.pack("<8I", *subtree(data, 0, True))


# ------------------------------------------------------------------ CBOR, as far as bodies use it

def cbor(data):
    stream = io.BytesIO(data)

    def item():
        first = stream.read(1)[0]
        kind, short = first >> 5, first & 31
        if kind == 7:
            if short == 27:
                return struct.unpack(">d", stream.read(8))[0]
            if short == 26:
                return struct.unpack(">f", stream.read(4))[0]
            return {20: False, 21: True, 22: None}[short]
        if kind == 6:
            stream.read(1 << (short - 24) if short > 23 else 0)
            return item()
        number = short if short < 24 else int.from_bytes(stream.read(1 << (short - 24)), "big")
        if kind == 0:
            return number
        if kind == 1:
            return -1 - number
        if kind == 2:
            return stream.read(number)
        if kind == 3:
            return stream.read(number).decode()
        if kind == 4:
            return [item() for _ in range(number)]
        need(kind == 5, "a body holds CBOR of an unknown kind")
        return {item(): item() for _ in range(number)}

    value = item()
    need(not stream.read(1), "bytes follow a body's CBOR")
    return value


# ------------------------------------------------------------------ the log

def leaf_hash(entry):
    return hashlib.sha256(b"\0" + entry).digest()


def node_hash(left, right):
    return hashlib.sha256(b"\1" + left + right).digest()


def root_of(proof, index, size, leaf):
    """The root that an inclusion proof leads to, by the recursion that defines the tree."""
    if size == 1:
        need(not proof, "the proof is too long")
        return leaf
    need(proof, "the proof is too short")
    left = 1 << (size - 1).bit_length() - 1
    if index < left:
        return node_hash(root_of(proof[:-1], index, left, leaf), proof[-1])
    return node_hash(proof[-1], root_of(proof[:-1], index - left, size - left, leaf))


def roots_of(proof, old, new, old_root, whole=True):
    """The old and the new root that a consistency proof leads to."""
    if old == new:
        if whole:
            need(not proof, "the proof is too long")
            return old_root, old_root
        need(len(proof) == 1, "the proof has the wrong length")
        return proof[0], proof[0]
    need(proof, "the proof is too short")
    left = 1 << (new - 1).bit_length() - 1
    if old <= left:
        before, after = roots_of(proof[:-1], old, left, old_root, whole)
        return before, node_hash(after, proof[-1])
    before, after = roots_of(proof[:-1], old - left, new - left, old_root, False)
    return node_hash(proof[-1], before), node_hash(proof[-1], after)


def signed(message, signature, key=PUBLIC_KEY):
    try:
        key.verify(message, signature)
    except nacl.exceptions.BadSignatureError:
        raise Invalid("a signature does not match") from None


def open_head(note, cosigners=()):
    text, signatures = note.split("\n\n")
    text += "\n"
    origin, size, root = text.splitlines()
    line, *cosignatures = signatures.splitlines()
    need(len(cosignatures) == len(cosigners), "the head has other cosignatures than it names")
    for cosignature, cosigner in zip(cosignatures, cosigners):
        open_cosignature(cosignature, text, cosigner)
    dash, name, encoded = line.split(" ")
    need(dash == "\u2014" and name == origin, "the head is signed under another name than its origin")
    data = base64.b64decode(encoded)
    need(data[:4] == hashlib.sha256(name.encode() + b"\n\1" + bytes(PUBLIC_KEY)).digest()[:4], "the head names another key")
    signed(text.encode(), data[4:])
    return origin, int(size), base64.b64decode(root)


def open_cosignature(line, text, cosigner):
    """By c2sp.org/tlog-cosignature: a time, and a signature over it and the whole text."""
    name, key_hash, encoded = cosigner.split("+", 2)
    typed = base64.b64decode(encoded)
    need(typed[0] == 4 and len(typed) == 33, "it is no key of a cosigner")
    wanted = hashlib.sha256(name.encode() + b"\n" + typed).digest()[:4]
    need(wanted.hex() == key_hash, "a cosigner's key is not under its name")
    dash, signer, encoded = line.split(" ")
    data = base64.b64decode(encoded)
    need(dash == "\u2014" and signer == name and data[:4] == wanted, "a cosignature is of another key than is named")
    message = f"cosignature/v1\ntime {int.from_bytes(data[4:12], 'big')}\n{text}".encode()
    signed(message, data[12:], nacl.signing.VerifyKey(typed[1:]))


# ------------------------------------------------------------------ the forms

def of_receipt(file):
    body = bytes.fromhex(file["body"])
    link = blake3(file["seq"].to_bytes(8, "big") + bytes.fromhex(file["previous_link_hash"]) + file["receipt_id"].encode() + blake3(body))
    need(link.hex() == file["link_hash"], "the link hash is of something else")
    signed(link, bytes.fromhex(file["signature"]))
    origin, size, root = open_head(file["head"])
    need(urllib.parse.unquote(origin.split("/")[2]) == file["tenant_id"], "the head is of another tenant")
    passport = file["signer_passport"]
    entry = link + struct.pack(">QQ", file["revision"], file["made_at_unix_ms"])
    entry += b"\0" if passport is None else b"\1" + passport.encode()
    proof = [bytes.fromhex(text) for text in file["proof"]]
    need(root_of(proof, file["seq"], size, leaf_hash(entry)) == root, "the proof does not lead to the head")
    return cbor(body)


def of_head(file):
    origin, _, _ = open_head(file["head"], file.get("cosigners", ()))
    key_hash = hashlib.sha256(origin.encode() + b"\n\1" + bytes(PUBLIC_KEY)).digest()[:4].hex()
    key = f"{origin}+{key_hash}+{base64.b64encode(bytes([1]) + bytes(PUBLIC_KEY)).decode()}"
    need(file["verifier_key"] == key, "the verifier key is another one")


def of_ring(file):
    """Each key that followed another did so by the word of both; the last one signs."""
    known = {key["public_key"] for key in file["keys"]}
    links = [key for key in file["keys"] if "succession" in key]
    need(links and file["signing"] == max(links, key=lambda key: key["succession"]["signs_from"])["public_key"], "another key signs")
    for key in file["keys"]:
        need(key["key_id"] == blake3(bytes.fromhex(key["public_key"])).hex()[:16], "a key has another id")
    for key in links:
        before, own, told = key["succession"]["predecessor"], key["public_key"], key["succession"]
        need(before in known, "a key follows one that is not in the ring")
        message = b"quorate receipt key succession 1\0" + bytes.fromhex(before) + bytes.fromhex(own)
        signed(message, bytes.fromhex(told["by_predecessor"]), nacl.signing.VerifyKey(bytes.fromhex(before)))
        signed(message, bytes.fromhex(told["by_successor"]), nacl.signing.VerifyKey(bytes.fromhex(own)))
    need(bytes(PUBLIC_KEY).hex() in known, "the key of the vectors is not in the ring")


def of_inclusion(file):
    _, size, root = open_head(file["head"])
    proof = [bytes.fromhex(text) for text in file["proof"]]
    need(root_of(proof, file["seq"], size, bytes.fromhex(file["leaf_hash"])) == root, "the proof does not lead to the head")


def of_consistency(file):
    (origin, old, old_root), (other, new, new_root) = open_head(file["from"]), open_head(file["to"])
    need(origin == other, "the heads are of two logs")
    proof = [bytes.fromhex(text) for text in file["proof"]]
    need(roots_of(proof, old, new, old_root) == (old_root, new_root), "the later head does not continue the earlier one")


def of_output(file):
    need(of_receipt(file["receipt"]) == file["claim"], "the claim is not what the receipt says")
    need(file["claim"]["content_hash_hex"] == blake3(b"hello").hex(), "the content is another one")


def of_observation(file):
    need(file["body_hash"] == "blake3:" + blake3(file["body"].encode()).hex(), "the body does not have its hash")
    signed(bytes.fromhex(file["body_hash"][len("blake3:"):]), bytes.fromhex(file["signature"]))


def of_bundle(data):
    tar = tarfile.open(fileobj=io.BytesIO(subprocess.run(["zstd", "-dqc"], input=data, stdout=subprocess.PIPE, check=True).stdout))
    files = {member.name: tar.extractfile(member).read() for member in tar}
    manifest = json.loads(files["manifest.json"])
    need(base64.b64decode(manifest["signer_public_key_b64"]) == bytes(PUBLIC_KEY), "the bundle is signed with another key")
    unsigned = json.dumps({**manifest, "signature_b64": ""}, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    signed(b"cuecrux.audit_bundle.v3\0" + unsigned, base64.b64decode(manifest["signature_b64"]))
    for name, field in (("events.jsonl", "events_jsonl_sha256"), ("entries.sha256", "entries_sha256"),
                        ("receipts.cbor", "receipts_cbor_sha256")):
        need(hashlib.sha256(files[name]).hexdigest() == manifest[field], f"{name} does not have its digest")
    lines = files["events.jsonl"].splitlines()
    need([hashlib.sha256(line).hexdigest() for line in lines] == files["entries.sha256"].decode().split(), "an entry was changed")
    events = [json.loads(line) for line in lines]
    need(len(events) == manifest["fact_count"], "the number of facts is another")
    named = [{"fact_id": event["fact_id"], "receipt_id": event["source_receipt"]} for event in events if "source_receipt" in event]
    need(cbor(files["receipts.cbor"]) == named and len(named) == manifest["receipt_count"], "receipts.cbor names others than the facts")
    body = of_receipt(json.loads(files["receipt.json"]))
    shared = [name for name in body if name in manifest]
    need(len(shared) >= 10 and body["receipt_id"] == manifest["bundle_id"], "the receipt is of another export")
    need(all(body[name] == manifest[name] for name in shared), "the log tells of another export than the manifest")


def boxes(data):
    """JUMBF boxes: their kind and content, in order."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        need(8 <= size <= len(data), "a box is longer than what it is in")
        found.append((data[4:8], data[8:size]))
        data = data[size:]
    return found


def named(data):
    """What is in a superbox by label: the content of its one CBOR box, or further boxes; and the bytes that are hashed of it."""
    found = {}
    for kind, content in boxes(data):
        if kind != b"jumb":
            continue
        (_, description), *within = boxes(content)
        label = description[17:].split(b"\0")[0].decode()
        is_cbor = [kind for kind, _ in within] == [b"cbor"]
        found[label] = (within[0][1] if is_cbor else content[len(description) + 8:], content)
    return found


def to_cbor(value):
    def head(kind, number):
        if number < 24:
            return bytes([kind << 5 | number])
        size = next(size for size in (1, 2, 4, 8) if number < 1 << 8 * size)
        return bytes([kind << 5 | 23 + size.bit_length()]) + number.to_bytes(size, "big")

    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(to_cbor, value))
    data = value.encode() if isinstance(value, str) else value
    return head(3 if isinstance(value, str) else 2, len(data)) + data


def of_c2pa(data):
    """A C2PA manifest store: the claim is signed by the certificate's key, names each assertion's hash, and one is of the content."""
    (label, (manifest, _)), = named(named(data)["c2pa"][0]).items()
    parts = named(manifest)
    claim = cbor(parts["c2pa.claim.v2"][0])
    protected, _, payload, signature = cbor(parts["c2pa.signature"][0])
    header = cbor(protected)
    key = header[33][0].split(bytes.fromhex("302a300506032b6570032100"))[1][:32]
    need(header[1] == -8 and payload is None, "it is signed in another way")
    signed(to_cbor(["Signature1", protected, b"", parts["c2pa.claim.v2"][0]]), signature, nacl.signing.VerifyKey(key))
    need(claim["signature"] == f"self#jumbf=/c2pa/{label}/c2pa.signature", "the claim names another signature")
    assertions = named(parts["c2pa.assertions"][0])
    told = {row["url"].rsplit("/", 1)[1]: row["hash"] for row in claim["created_assertions"]}
    need(told == {name: hashlib.sha256(content).digest() for name, (_, content) in assertions.items()}, "an assertion is another one")
    need(cbor(assertions["c2pa.hash.data"][0])["hash"] == hashlib.sha256(b"hello").digest(), "the content is another one")
    need(cbor(assertions["org.quorate.receipt"][0])["content_hash_hex"] == blake3(b"hello").hex(), "the receipt's content is another one")


FORMS = {
    "quorate.receipt.v1": of_receipt,
    "quorate.log-head.v1": of_head,
    "quorate.cosigned-head.v1": of_head,
    "quorate.log-inclusion.v1": of_inclusion,
    "quorate.log-consistency.v1": of_consistency,
    "quorate.output-manifest.v1": of_output,
}


def verify(data):
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return of_bundle(data)
    if data[4:8] == b"jumb":
        return of_c2pa(data)
    file = json.loads(data)
    if "keys" in file:
        return of_ring(file)
    need(file.get("public_key", file.get("receipt", {}).get("public_key")) == bytes(PUBLIC_KEY).hex(), "it names another key")
    return FORMS.get(file.get("form"), of_observation)(file)


def main():
    folder = pathlib.Path(__file__).resolve().parent
    paths = [pathlib.Path(name) for name in sys.argv[1:]] or sorted([*folder.glob("*.json"), *folder.glob("*.zst"), *folder.glob("*.c2pa")])
    for path in paths:
        try:
            verify(path.read_bytes())
        except (Invalid, ValueError, KeyError, TypeError, IndexError) as error:
            sys.exit(f"{path.name}: {error!r}")
        print(f"valid  {path.name}")


if __name__ == "__main__":
    main()
