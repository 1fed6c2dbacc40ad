"""Access to the API server: a service account, kubeconfigs, and TLS as in real clusters."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys

import pytest
import yaml

from nodeagent.kube.access import SERVICE_ACCOUNT, Access, AccessError, in_cluster, kubeconfig
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import NODES
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.apiserver.tls import Certificates

pytestmark = pytest.mark.usefixtures("virtual_time")


def config(tmp_path, cluster=None, user=None, context=None):
    path = tmp_path / "config"
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(text))
    return path


# --- in the cluster -----------------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    folder = tmp_path / SERVICE_ACCOUNT
    folder.mkdir(parents=True)
    for name, text in (("token", "t1\n"), ("ca.crt", "pem"), ("namespace", "nodeagent")):
        (folder / name).write_text(text)
    return folder


def test_a_pod_has_a_service_account(account, tmp_path):
    access = in_cluster(tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "nodeagent")
    assert access.authorization() == "Bearer t1"
    (account / "token").write_text("t2")
    assert access.authorization() == "Bearer t2"
    (account / "token").write_text("")
    with pytest.raises(AccessError, match="the token is empty"):
        access.authorization()


def test_outside_a_cluster_is_no_error(account, tmp_path, monkeypatch):
    (account / "token").unlink()
    assert in_cluster(tmp_path) is None
    (account / "token").write_text("t")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert in_cluster(tmp_path) is None


def test_half_of_a_service_account_is_an_error(account, tmp_path):
    (account / "ca.crt").unlink()
    with pytest.raises(AccessError, match=r"ca\.crt: missing, so the API server cannot be trusted"):
        in_cluster(tmp_path)


# --- kubeconfigs --------------------------------------------------------------------------------------


def test_a_plain_kubeconfig_needs_no_other_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    (tmp_path / "ca.pem").write_text("CA")
    data = base64.b64encode(b"CERT").decode()
    path = config(
        tmp_path,
        {"certificate-authority": "ca.pem", "tls-server-name": "kubernetes"},
        {"client-certificate-data": data, "client-key-data": data, "token": "t"},
        {"namespace": "ns"},
    )
    access = kubeconfig(path)
    assert access == Access(
        "https://api:6443", "ns", ca="CA", token="t", certificate="CERT", key="CERT", server_name="kubernetes"
    )
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert kubeconfig() == access


def test_a_login_by_a_program_needs_the_official_client(tmp_path, monkeypatch):
    path = config(
        tmp_path, user={"exec": {"command": "login", "apiVersion": "client.authentication.k8s.io/v1"}}
    )
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    with pytest.raises(AccessError, match=r"pip install kubernetes"):
        kubeconfig(path)


@pytest.mark.needs("kubernetes")
def test_a_login_by_a_program_is_done_by_the_official_client(tmp_path):
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "made"},
    }
    (tmp_path / "login").write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    (tmp_path / "login").chmod(0o755)
    user = {
        "exec": {
            "command": str(tmp_path / "login"),
            "apiVersion": "client.authentication.k8s.io/v1",
            "interactiveMode": "Never",
        }
    }
    access = kubeconfig(config(tmp_path, user=user))
    assert (access.server, access.authorization()) == ("https://api:6443", "Bearer made")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1, 2]", "no kubeconfig"),
        ("a: [", "no YAML"),
        ("{}", "no current-context"),
        ("current-context: x\ncontexts: [{name: y}]", "contexts has no 'x'; it has y"),
        (
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]",
            "clusters has no 'c'; it has none",
        ),
        (
            "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {a: 1}}]",
            "cluster 'c' has no server",
        ),
    ],
)
def test_the_error_of_an_unusable_kubeconfig_names_the_cause(tmp_path, text, sentence):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(AccessError, match=sentence) as raised:
        kubeconfig(path)
    assert str(path) in str(raised.value)


def test_a_kubeconfig_with_a_proxy_is_refused(tmp_path):
    with pytest.raises(AccessError, match="proxy-url is not supported"):
        kubeconfig(config(tmp_path, cluster={"proxy-url": "http://proxy:3128"}))


def test_a_missing_kubeconfig_is_an_error(tmp_path):
    with pytest.raises(AccessError, match="nowhere: No such file"):
        kubeconfig(tmp_path / "nowhere")


def test_no_message_contains_a_secret(tmp_path):
    path = config(tmp_path, user={"client-key-data": "s3cret", "client-certificate-data": "s3cret"})
    with pytest.raises(AccessError) as raised:
        kubeconfig(path)
    assert "s3cret" not in str(raised.value)


# --- TLS ----------------------------------------------------------------------------------------------


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("identifiers", [True, False], ids=["a CA with key identifiers", "one without"])
async def test_the_clusters_ca_is_trusted_and_no_other(tmp_path, identifiers):
    certificates = Certificates(tmp_path, identifiers=identifiers)
    server = await ApiServer(tls=certificates).start()
    client = ApiClient(Access(server.url, ca_file=certificates.ca, token=server.token()))
    assert (await client.list(NODES)).items == []
    await client.close()
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other")
    wary = ApiClient(Access(server.url, ca_file=other.ca, token="t"))
    with pytest.raises(ApiError, match="check the CA that the service account") as raised:
        await wary.list(NODES)
    assert raised.value.reason == "Untrusted"
    # The CA was renewed: the file is read again.
    other.ca.write_bytes(certificates.ca.read_bytes())
    with pytest.raises(ApiError, match="401 Unauthorized"):
        await wary.list(NODES)
    await wary.close()
    await server.stop()


async def test_a_balancer_that_closes_the_handshake_is_no_question_of_trust():
    """As while the API server behind it is restarted."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.close()

    balancer = await asyncio.start_server(close, "127.0.0.1", 0)
    client = ApiClient(Access(f"https://127.0.0.1:{balancer.sockets[0].getsockname()[1]}", token="t"))
    with pytest.raises(ApiError, match="gave no complete answer") as raised:
        await client.list(NODES)
    assert raised.value.reason == "Broken"
    await client.close()
    balancer.close()


@pytest.mark.needs("openssl")
async def test_a_client_certificate_authenticates(tmp_path):
    certificates = Certificates(tmp_path)
    server = await ApiServer(tls=certificates).start()
    certificate, key = certificates.client("kubernetes-admin", "system:masters")
    access = kubeconfig(
        config(
            tmp_path,
            {"server": server.url, "certificate-authority": str(certificates.ca)},
            {"client-certificate": str(certificate), "client-key": str(key)},
        )
    )
    client = ApiClient(access)
    await client.list(NODES)
    assert server.requests[-1].user == "kubernetes-admin"
    await client.close()
    await server.stop()


@pytest.mark.needs("openssl")
async def test_the_error_of_an_invalid_ca_names_its_file(tmp_path):
    (tmp_path / "ca.crt").write_text("no PEM")
    client = ApiClient(Access("https://127.0.0.1:1", ca_file=tmp_path / "ca.crt"))
    with pytest.raises(ApiError, match=r"ca\.crt"):
        await client.list(NODES)
    await client.close()


def test_strict_x509_would_refuse_the_ca_of_many_clusters(tmp_path):
    """Why the flag is cleared: Python 3.13 sets it by default."""
    from nodeagent.kube.transport import _context

    context = _context(Access("https://x"))
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
