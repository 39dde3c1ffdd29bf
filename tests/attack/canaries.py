"""Pipeline files in which every secret is a word that can be found again wherever it gets to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus

_PLAIN_IN_CLEAR = ("option",)
"""Of free-form options only those with a telling name, or with a reference, are secret."""
WAYS = ("literal", "env", "file")
"""How a pipeline file comes by a secret."""


@dataclass
class Canaries:
    """Words that were let out, each once; `folder` is where those in files are kept."""

    folder: Path
    way: str
    environ: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str) -> str:
        """A reference to a new secret, as it is written in a pipeline file."""
        if self.way == "literal" and name in _PLAIN_IN_CLEAR:
            return '"in clear"'
        word = self.words.setdefault(name, f"canary.{name}/{len(self.words):02d}+x")
        if self.way == "literal":
            return json.dumps(word)
        place = re.sub(r"\W", "_", name).upper()
        if self.way == "env":
            self.environ[place] = word
            return f'"${{env:{place}}}"'
        path = self.folder / place
        path.write_text(word)
        return f'"${{file:{path}}}"'

    def found_in(self, text: str) -> list[str]:
        """Names of secrets that a text tells, as they are or as they may have been sent."""
        return [
            name
            for name, word in self.words.items()
            if any(form in text for form in (word, quote_plus(word), json.dumps(word)[1:-1]))
        ]

    def found_below(self, folder: Path, *, but: set[Path]) -> Iterator[tuple[str, Path]]:
        """The same for everything that was left in a folder, names included."""
        for path in sorted(folder.rglob("*")):
            if path in but or any(parent in but for parent in path.parents):
                continue
            text = str(path.relative_to(folder))
            if path.is_file():
                text += path.read_bytes().decode("latin-1")
            yield from ((name, path) for name in self.found_in(text))


SOURCES = {
    "sasl": """
  security: {{protocol: SASL_SSL, mechanism: PLAIN, username: someone, password: {sasl}}}
  options:
    kafka.sasl.client.callback.note: {option}
    kafka.sasl.oauthbearer.assertion: {assertion}""",
    "stores": """
  security:
    protocol: SSL
    truststore_location: /nowhere/trust.jks
    truststore_password: {truststore}
    keystore_location: /nowhere/key.jks
    keystore_password: {keystore}
    key_password: {kafka_key}""",
    "bare": "",
}
REGISTRIES = {
    "sasl": "{{url: '{url}', username: someone, password: {basic}}}",
    "stores": """
  url: '{url}'
  oauth:
    token_url: '{url}/oauth/token?code=here'
    client_id: someone
    client_secret: {oauth}
    credentials: body
    parameters: {{client_assertion: {oauth_named}, flavour: {oauth_unnamed}}}""",
    "bare": """
  url: '{url}'
  token: {token}
  certificate_location: /nowhere/client.pem
  key_location: /nowhere/client.key
  key_password: {registry_key}""",
}
FILE = """\
name: hunted
source:
  type: kafka
  bootstrap_servers: 127.0.0.1:{port}
  topics: [events]{source}
registry: {registry}
payload: {{format: protobuf}}
tables: {{each: "{each}"{format}}}
{cdc}
lake:
  path: {lake}{catalog}
  storage_options:
    aws_access_key_id: {aws_id}
    aws_secret_access_key: {aws_key}
    aws_session_token: {aws_token}
    azure_storage_account_key: {azure_key}
    azure_storage_sas_key: {azure_sas}
    google_service_account_key: {gcs_key}
spark:{remote}
  conf:
    spark.hadoop.fs.s3a.secret.key: {s3a}
    spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net: {abfs}
    spark.driver.extraJavaOptions: {java_options}
    spark.executorEnv.API_TOKEN: {executor_env}
lineage: {{url: '{url}', token: {lineage}}}
masking: {{key: {mask_key}}}
alerts:
  to:
    - {{type: webhook, url: {hook}, secret: {hook_secret}, token: {hook_token}}}
    - {{type: slack, url: {slack}}}
    - {{type: pagerduty, routing_key: {pager}, url: '{url}'}}
    - type: email
      host: 127.0.0.1
      port: {port}
      username: someone
      password: {mail}
      from: a@example.com
      to: [b@example.com]
"""
_PLAIN = (
    *("sasl", "option", "assertion", "truststore", "keystore", "kafka_key", "basic", "oauth"),
    *("oauth_named", "oauth_unnamed", "token", "aws_id", "aws_key", "aws_token", "azure_key"),
    *("azure_sas", "gcs_key", "s3a", "abfs", "executor_env", "lineage", "hook_secret"),
    *("hook_token", "pager", "mail", "registry_key", "mask_key"),
)


def pipeline_file(
    canaries: Canaries, kind: str, *, lake: Path, url: str, port: int, source: str = ""
) -> str:
    """A pipeline whose broker is not there, and whose servers repeat what they are told."""
    secrets = {name: canaries(name) for name in _PLAIN}
    for name in ("hook", "slack"):
        secrets[name] = _within(canaries, name, f"{url}/{{}}")
    options = "-Xss4m -Djavax.net.ssl.keyStorePassword={}"
    secrets["java_options"] = _within(canaries, "java_options", options)
    server = "sc://127.0.0.1:1/;token={}"
    remote = f"\n  remote: {_within(canaries, 'remote', server)}" if kind == "stores" else ""
    # every value that may be secret, in one file or another
    entries = (
        f"{{type: unity, url: '{url}', name: main, schema: games, token: {canaries('unity')}}}"
    )
    catalog = f"\n  catalog: {entries}" if kind == "sasl" else ""
    if kind == "stores":
        address = _within(canaries, "iceberg_uri", f"{url}/{{}}")
        token = canaries("iceberg_token")
        catalog = f"\n  iceberg: {{type: rest, uri: {address}, token: {token}}}"
    cdc = ""
    if kind == "sasl":
        address = _within(
            canaries, "source_url", "postgresql://reader@127.0.0.1:1/shop?password={}"
        )
        cdc = f"cdc: {{format: debezium, source_url: {address}}}"
    known = {"url": url, "port": port, "lake": lake}
    return FILE.format(
        **secrets,
        **known,
        remote=remote,
        catalog=catalog,
        cdc=cdc,
        each="{table}" if cdc else "{topic}",
        format=", format: iceberg" if kind == "stores" else "",
        source=SOURCES[kind].format(**secrets),
        registry=REGISTRIES[kind].format(**secrets, **known),
    )


def _within(canaries: Canaries, name: str, around: str) -> str:
    """A secret that is a part of a longer text."""
    return json.dumps(around.format(json.loads(canaries(name))))


def running_file(canaries: Canaries, *, source: Path, folder: Path, url: str) -> str:
    """A pipeline that can run, with as many secrets as one without a broker can have."""
    whole = pipeline_file(canaries, "bare", lake=folder / "lake", url=url, port=1)
    tables, _, rest = whole.partition("lake:\n")
    del tables
    rest = rest.replace(
        "spark:\n  conf:\n",
        "spark:\n  conf:\n"
        '    spark.eventLog.enabled: "true"\n'
        '    spark.eventLog.compress: "false"\n'
        f"    spark.eventLog.dir: file://{folder}/events\n",
    )
    return f"""\
name: hunted
source: {{type: delta, path: {source}, value: value}}
payload: {{format: json}}
tables: {{each: "{{topic}}", bronze: raw}}
shape: [{{set: {{m: "n + 1"}}, mask: {{n: token, m: hash}}}}]
lake:
{rest}"""
