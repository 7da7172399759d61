"""Search over processes: what was written is found at once on every node, and an index that is gone or torn comes back."""
import pathlib
import shutil
import sys
import tempfile
import unittest
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from deployment import Deployment, until  # noqa: E402
from runner import main  # noqa: E402
from wire import Client  # noqa: E402


def unique(begin):
    """A word that nothing else holds. Of letters alone: a mix of letters and digits is several words, which others share."""
    return begin + "".join(chr(ord("g") + int(digit, 16)) for digit in uuid.uuid4().hex[:12])


class Search(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.deployment = Deployment()

    @classmethod
    def tearDownClass(cls):
        cls.deployment.stop()

    def client(self, who):
        return Client(self.deployment.info["http"], self.deployment.token(who))

    def found(self, client, query):
        reply = client.ok("query", tenant_id="default", query=query)
        self.assertTrue(reply["meta"]["up_to_date"], reply)
        return [row["title"] for row in reply["results"]]

    def test_a_write_is_found_by_the_next_search_and_what_it_replaced_is_not(self):
        a, b, other = self.client("agent-a"), self.client("agent-b"), self.client("other-tenant")
        word, versions = unique("w"), [unique("v") for _ in range(10)]
        for version in versions:
            a.ok("store_fact", entity="svc:api", key=word, value=f"{word} {version}")
            # Any node may serve it.
            self.assertEqual(self.found(b, f"{word} {version}"), [f"svc:api / {word}"])
        self.assertEqual([row["title"] for row in other.ok("query", tenant_id="other", query=word)["results"]], [])
        reply = b.ok("query", tenant_id="default", query=f"{word} {versions[3]}")
        self.assertEqual(reply["coverage"]["gaps"], [versions[3]], "an earlier version is found by nobody")
        [row] = reply["results"]
        [whole] = b.ok("query_expand", tenant_id="default", result_ids=[row["doc_id"]])["results"]
        self.assertEqual(whole["content"], f"{word} {versions[9]}")

    def test_what_nobody_knows_is_noted_as_a_gap(self):
        a = self.client("agent-a")
        word = unique("g")
        reply = a.ok("query", tenant_id="default", query=f"what is {word}")
        self.assertEqual((reply["coverage"]["gaps"], reply["coverage"]["below_floor"]), ([word], True))
        [gap] = self.client("agent-b").ok("get_gaps", query=word)["gaps"]
        self.assertIn(word, gap["value"])
        self.assertEqual(self.client("other-tenant").ok("get_gaps", query=word)["gaps"], [])

    def test_an_index_that_is_gone_or_torn_is_built_anew(self):
        a = self.client("agent-a")
        word = unique("i")
        a.ok("store_fact", entity="svc:api", key=word, value="kept in the state")
        self.assertEqual(self.found(a, word), [f"svc:api / {word}"])
        self.deployment.halt()
        folders = sorted(pathlib.Path(self.deployment.data).glob("node-*/search"))
        self.assertEqual(len(folders), 3, folders)
        shutil.rmtree(folders[0])
        (folders[1] / "meta.json").write_text("{")
        self.deployment.go_on()
        a = self.client("agent-a")
        until(lambda: self.found(a, word) == [f"svc:api / {word}"], 30, "the fact is found again")
        for _ in range(6):
            self.assertEqual(self.found(a, word), [f"svc:api / {word}"])

    def test_a_folder_is_ingested_once_found_by_its_words_and_follows_its_files(self):
        word = unique("d")
        with tempfile.TemporaryDirectory() as folder:
            for n in range(3):
                (pathlib.Path(folder) / f"{word}{n}.md").write_text(f"# Chapter {n}\n\nabout {word} number{n}\n" + "and more words\n\n" * 400)
            (pathlib.Path(folder) / "picture.png").write_bytes(b"\x89PNG")
            code, done, said = self.deployment.verb("ingest", folder, "--as", "agent-a")
            self.assertEqual((code, len(done["sent"]), done["failed"], done["skipped"]), (0, 3, [], 1), said)
            a = self.client("agent-b")
            reply = a.ok("query", tenant_id="default", query=f"{word} number1")
            best = reply["results"][0]
            self.assertEqual((best["kind"], best["title"].endswith(f"{word}1.md")), ("document", True), best)
            scanned = a.ok("query_scan", tenant_id="default", query=f"{word} number1")["results"][0]
            self.assertEqual((scanned["doc_id"], set(scanned)), (best["doc_id"], {"doc_id", "kind", "title", "score", "token_count"}))
            [whole] = a.ok("query_expand", tenant_id="default", result_ids=[best["doc_id"]])["results"]
            self.assertIn(f"about {word} number1", whole["content"])

            code, done, said = self.deployment.verb("ingest", folder, "--as", "agent-a")
            self.assertEqual((done["sent"], done["unchanged"]), ([], 3), said)
            changed = pathlib.Path(folder) / f"{word}1.md"
            changed.write_text(f"about {word} rewritten\n")
            code, done, said = self.deployment.verb("ingest", folder, "--as", "agent-a")
            self.assertEqual((len(done["sent"]), done["unchanged"]), (1, 2), said)
            self.assertEqual(a.ok("query", tenant_id="default", query=f"{word} number1")["coverage"]["gaps"], ["number1"])
            code, done, said = self.deployment.verb("ingest", "--list", str(changed), "--as", "agent-a")
            self.assertEqual([row["name"] for row in done["documents"]], [str(changed)], said)
            code, done, said = self.deployment.verb("ingest", "--remove", str(changed), "--as", "agent-a")
            self.assertEqual(done["documents"], [{"name": str(changed), "removed": True}], said)
            self.assertNotIn(str(changed), [row["title"] for row in a.ok("query", tenant_id="default", query=word)["results"]])


if __name__ == "__main__":
    main()
