"""Who may ask: hosts, origins, keys; and what keeps two keys apart."""

import hmac

import pytest

from corral.api import page
from corral.api.app import make_app
from corral.api.security import digest, find, host_name
from corral.api.settings import ApiSettings
from served import ScriptedService
from unit.api.conftest import Asked

KEY = "sk-secret"
BODY = {"prompt": "echo a"}


def guarded(service, **more):
    digests = (digest(KEY), digest("sk-other"))
    return Asked(service, ApiSettings(model="m", key_digests=digests, **more))


def routes():
    """Return every method and path that there is."""
    app = make_app(ScriptedService(), ApiSettings(model="m"))
    found = [route for route in app.routes if getattr(route, "methods", None)]
    return sorted((method, route.path) for route in found for method in route.methods)


PUBLIC = {(method, path) for method in ("GET", "HEAD") for path in ("/health", "/v1/health")}


@pytest.mark.parametrize(("method", "path"), routes(), ids="".join)
def test_every_route_needs_a_key_but_the_health_check(service, method, path):
    """Nothing is open because somebody forgot it: the key is asked for before any route."""
    status = guarded(service)(method, path).status_code
    assert status == (200 if (method, path) in PUBLIC else 401)


@pytest.mark.parametrize("path", ["/nope", "/v1/", "/health/x", "/health/", "/v1/models/x"])
def test_unknown_paths_need_a_key_too(service, path):
    """Without a key not even what exists can be found out."""
    assert guarded(service).get(path).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer sk-secre"},
        {"Authorization": "Bearer sk-secret2"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer " + "x" * 100_000},
        {"Authorization": "Bearer "},
        {"X-Api-Key": ""},
        {"X-Api-Key": digest(KEY).hex()},
        {"Authorization": f"Bearer {KEY}", "X-Api-Key": KEY},
        [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer wrong")],
    ],
    ids=repr,
)
def test_wrong_keys(service, headers):
    """A missing, wrong, shortened, lengthened, hashed or doubled key is none."""
    response = guarded(service)("POST", "/v1/completions", json=BODY, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert response.headers["www-authenticate"] == "Bearer"
    assert service.requests == []


def test_keys_have_namespaces(service):
    """Each key's requests share keys and values among themselves; the key is not in the name."""
    asked = guarded(service)
    for headers in (
        {"Authorization": f"Bearer {KEY}"},
        {"X-Api-Key": KEY},
        {"Authorization": "bearer sk-other"},
    ):
        response = asked("POST", "/v1/completions", json=BODY, headers=headers)
        assert response.status_code == 200
    first, same, other = (request.namespace for request in service.requests)
    assert first == same != other
    assert KEY not in first
    assert digest(KEY).hex()[:16] not in first


def test_keys_are_compared_in_constant_time(monkeypatch):
    """Every known key is compared, whichever fits, and by what takes equal time."""
    compared = []

    def compare(a, b):
        compared.append(a)
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    known = [digest("a"), digest("b"), digest("c")]
    assert find("a", known) == known[0]
    assert compared == known


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("evil@localhost", 421),
        ("localhost/evil", 421),
        ("localhost:port", 421),
        ("localhost:99999", 421),
        ("", 421),
        ("127.0.0.2", 421),
    ],
)
def test_hosts(ask, host, status):
    """A name that a page elsewhere points at this server is not answered to."""
    assert ask.get("/v1/models", headers={"Host": host}).status_code == status


def test_hosts_may_be_added(service):
    """A server with a name of its own answers to it, or to any if so asked."""
    named = Asked(service, ApiSettings(model="m", allowed_hosts=frozenset({"box.example"})))
    assert named.get("/health", headers={"Host": "box.example:80"}).status_code == 200
    assert named.get("/health", headers={"Host": "localhost"}).status_code == 421
    anyone = Asked(service, ApiSettings(model="m", allowed_hosts=frozenset({"*"})))
    assert anyone.get("/health", headers={"Host": "whatever"}).status_code == 200
    addresses = Asked(service, ApiSettings(model="m", allows_addresses=True))
    for host, status in (("192.0.2.7:80", 200), ("[2001:db8::1]", 200), ("evil.example", 421)):
        assert addresses.get("/health", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("host", "name"),
    [("Box:1", "box"), ("[::1]:5", "::1"), ("a@b", None), ("a/b", None), ("a:b", None), ("", None)],
)
def test_names_of_hosts(host, name):
    """A Host header is a name and a port and nothing else."""
    assert host_name(host) == name


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost", 200),
        ("https://localhost", 200),
        ("http://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost:9999", 403),
        ("null", 403),
    ],
)
def test_origins(ask, origin, status):
    """A page elsewhere cannot post, even where its browser does not ask first."""
    headers = {} if origin is None else {"Origin": origin}
    response = ask("POST", "/v1/completions", json=BODY, headers=headers)
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers


def test_cors_is_for_those_that_are_named(service):
    """A named origin may ask and read; others still may not; nobody gets credentials."""
    asked = Asked(service, ApiSettings(model="m", cors_origins=("http://page.example",)))
    good = {"Origin": "http://page.example"}
    response = asked("POST", "/v1/completions", json=BODY, headers=good)
    assert response.headers["access-control-allow-origin"] == "http://page.example"
    assert "access-control-allow-credentials" not in response.headers
    before = {**good, "Access-Control-Request-Method": "POST"}
    preflight = asked("OPTIONS", "/v1/completions", headers=before)
    assert preflight.status_code == 204
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    bad = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    refused = asked("OPTIONS", "/v1/completions", headers=bad)
    assert "access-control-allow-origin" not in refused.headers
    assert refused.status_code == 405


def test_preflights_need_no_key_but_open_nothing(service):
    """A browser asks first without a key; what it then sends needs one."""
    asked = guarded(service, cors_origins=("*",))
    headers = {"Origin": "http://any.example", "Access-Control-Request-Method": "POST"}
    assert asked("OPTIONS", "/v1/completions", headers=headers).status_code == 204
    assert asked("GET", "/v1/models", headers=headers).status_code == 401


def test_replies_protect_the_page(ask):
    """Scripts come from this server only, and nobody frames it."""
    headers = ask.get("/docs").headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_is_for_everybody_and_nothing_beside_it(service, tmp_path, monkeypatch):
    """The page's own files need no key; what lies beside their folder is not found."""
    folder = tmp_path / "static"
    (folder / "js").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html>the page")
    (folder / "js" / "main.js").write_text("1")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(page, "_FOLDER", folder)
    asked = guarded(service)
    shown = asked.get("/")
    assert "the page" in shown.text
    assert shown.headers["cache-control"] == "no-cache"
    again = asked.get("/", headers={"If-None-Match": shown.headers["etag"]})
    assert again.status_code == 304
    assert asked.get("/js/main.js").headers["content-type"].startswith("text/javascript")
    assert asked.get("/js/other.js").status_code == 401
    assert asked("POST", "/").status_code == 401
    key = {"Authorization": f"Bearer {KEY}"}
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/js/..%2f..%2fsecret.txt", "/link.txt"):
        assert asked.get(path, headers=key).status_code == 404, path
    assert asked.get("/health").json() == {"status": "ok"}
