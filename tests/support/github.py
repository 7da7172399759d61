"""A local stand-in for GitHub's REST API, as far as a reader of commits, pull requests, issues and comments meets it: pages with
`Link`, ETags and 304, `since`, both rate limits, faults, and a count of what was asked. Standard library only."""
import datetime
import hashlib
import http.server
import json
import threading
import urllib.parse

# Smaller than asked for, so that few items make many pages; GitHub may answer with fewer too.
PAGE = 5


def stamp(seconds):
    """An instant as GitHub writes it, so many seconds before now."""
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


class GitHub:
    """Serves what is in its lists, on a port of its own of 127.0.0.1."""

    def __init__(self, token):
        self.token, self.lock = token, threading.RLock()
        self.commits, self.issues, self.comments, self.reviews = [], [], [], []
        self.requests, self.not_modified, self.readers, self.faults = [], 0, set(), []
        # Called before each answer, outside of the lock.
        self.hook = lambda path: None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.answer(self)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/api/v3"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    # -------- what there is

    def commit(self, message, seconds, parents=None):
        with self.lock:
            sha = hashlib.sha1(f"{message} {len(self.commits)}".encode()).hexdigest()
            parents = parents if parents is not None else [commit["sha"] for commit in self.commits[-1:]]
            person = {"name": "Mara", "email": "mara@example.org", "date": stamp(seconds)}
            self.commits.append({
                "sha": sha, "html_url": f"https://github.com/acme/api/commit/{sha}", "author": {"login": "mara"},
                "commit": {"message": message, "author": person, "committer": person},
                "parents": [{"sha": parent} for parent in parents],
            })
            return sha

    def issue(self, title, seconds, pull=False, state="open", labels=()):
        with self.lock:
            number = len(self.issues) + 1
            issue = {
                "number": number, "title": title, "state": state, "body": f"About {title}.", "user": {"login": "jon"},
                "labels": [{"name": label} for label in labels], "created_at": stamp(seconds), "updated_at": stamp(seconds),
                "closed_at": None, "html_url": f"https://github.com/acme/api/issues/{number}",
            }
            if pull:
                issue |= {"pull_request": {"url": "x"}, "merged_at": None, "head": {"sha": "a" * 40}, "base": {"ref": "main"}}
            self.issues.append(issue)
            return number

    def change(self, number, seconds=0, **fields):
        with self.lock:
            self.issues[number - 1] |= {"updated_at": stamp(seconds), **fields}

    def remark(self, number, body, seconds, review=False):
        with self.lock:
            into = self.reviews if review else self.comments
            identifier = len(into) + 1
            parent = {"pull_request_url": f"{self.url}/repos/acme/api/pulls/{number}"} if review else \
                {"issue_url": f"{self.url}/repos/acme/api/issues/{number}"}
            into.append({"id": identifier, "body": body, "user": {"login": "olga"}, "created_at": stamp(seconds),
                         "updated_at": stamp(seconds), "html_url": f"https://github.com/acme/api/issues/{number}#c{identifier}", **parent})
            return identifier

    # -------- one answer

    def answer(self, request):
        parts = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        self.hook(request.path)
        with self.lock:
            self.requests.append(request.path)
            self.readers.add(request.headers.get("User-Agent"))
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                return self.send(request, 401, {"message": "Bad credentials"})
            if self.faults:
                status, headers = self.faults.pop(0)
                return self.send(request, status, {"message": "not now"}, headers)
            found = self.listed(parts.path, query)
            if found is None:
                return self.send(request, 404, {"message": "Not Found"})
            page = int(query.get("page", "1"))
            size = min(PAGE, int(query.get("per_page", "30")))
            shown = found[(page - 1) * size:page * size]
            body = json.dumps(shown).encode()
            etag = 'W/"' + hashlib.sha256(body + str(len(found) > page * size).encode()).hexdigest() + '"'
            if request.headers.get("If-None-Match") == etag:
                self.not_modified += 1
                return self.send(request, 304, None, {"ETag": etag})
            headers = {"ETag": etag}
            if len(found) > page * size:
                following = urllib.parse.urlencode({**query, "page": page + 1})
                headers["Link"] = f'<{self.url}{parts.path.removeprefix("/api/v3")}?{following}>; rel="next", <{self.url}/x>; rel="last"'
            return self.send(request, 200, shown, headers)

    def listed(self, path, query):
        since = query.get("since", "")
        # What has the same second comes in a fixed order.
        by_change = sorted(self.issues, key=lambda issue: (issue["updated_at"], issue["number"]))
        match path.removeprefix("/api/v3/repos/acme/api/"):
            case "commits":
                newest = sorted(self.commits, key=lambda commit: commit["commit"]["committer"]["date"], reverse=True)
                return [commit for commit in newest if commit["commit"]["committer"]["date"] >= since]
            case "pulls":
                assert (query["sort"], query["direction"], query["state"]) == ("updated", "desc", "all")
                return [issue for issue in reversed(by_change) if "pull_request" in issue]
            case "issues":
                assert (query["sort"], query["direction"], query["state"]) == ("updated", "asc", "all")
                return [issue for issue in by_change if issue["updated_at"] >= since]
            case "issues/comments":
                return [comment for comment in sorted(self.comments, key=lambda one: (one["updated_at"], one["id"])) if comment["updated_at"] >= since]
            case "pulls/comments":
                return [comment for comment in sorted(self.reviews, key=lambda one: (one["updated_at"], one["id"])) if comment["updated_at"] >= since]
        return None

    @staticmethod
    def send(request, status, body, headers=None):
        text = b"" if body is None else json.dumps(body).encode()
        request.send_response(status)
        for name, value in {"X-RateLimit-Remaining": "4999", **(headers or {})}.items():
            request.send_header(name, value)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        try:
            request.wfile.write(text)
        except OSError:
            pass
