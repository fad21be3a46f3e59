"""The files of deploy/ fit the service, their schemas and each other."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer.main

from nescio.cli import app
from nescio.service.images import max_memory
from nescio.service.requests import RequestLimits
from nescio.service.settings import Settings

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERS = ROOT / "docs" / "how-to" / "containers.md"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def tool(name):
    """The path of a program, or skip the test."""
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


def run(*words):
    finished = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def dockerfile(name="Dockerfile"):
    file = ROOT / "tools" / "package" / "dockerfile.py"
    spec = importlib.util.spec_from_file_location("dockerfile", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    instructions = module.instructions(DEPLOY / name)
    return instructions, lambda name: module.last(instructions, name)


def documents(*names):
    for name in names:
        yield from yaml.safe_load_all((DEPLOY / name).read_text("utf-8"))


def unit():
    """The settings of the systemd unit by name; the last one counts."""
    text = (DEPLOY / "systemd" / "nescio.service").read_text("utf-8")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


[COMPOSE] = documents("compose.yaml")
[DEPLOYMENT] = documents("kubernetes/deployment.yaml")
POD = DEPLOYMENT["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]


def commands():
    """How nescio is started, without the program itself."""
    return {
        "Dockerfile": dockerfile()[1]("CMD").words,
        "compose": COMPOSE["services"]["nescio"]["command"],
        "kubernetes": CONTAINER["args"],
        "systemd": shlex.split(unit()["ExecStart"])[1:],
    }


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", commands())
def test_commands_are_accepted_by_nescio_serve(where):
    name, *arguments = commands()[where]
    command = typer.main.get_command(app).commands[name]
    with command.make_context(name, arguments) as context:
        assert context.params["detector"].name == "tagger.nescio"
        assert context.params["port"] == 8000
        open_to_all = context.params["host"] == "0.0.0.0"
        # In a container, the address of the machine is the only way in.
        assert open_to_all == (where != "systemd")
        assert not context.params["no_token"]


def test_each_path_of_a_command_is_mounted():
    mounted = {
        "compose": [
            *(volume.split(":")[1] for volume in COMPOSE["services"]["nescio"]["volumes"]),
            *(f"/run/secrets/{name}" for name in COMPOSE["services"]["nescio"]["secrets"]),
        ],
        "kubernetes": ["/models", *(mount["mountPath"] for mount in CONTAINER["volumeMounts"])],
        "systemd": [
            "/etc/nescio",
            f"/var/lib/{unit()['StateDirectory']}",
            "${CREDENTIALS_DIRECTORY}",
        ],
    }
    for where, folders in mounted.items():
        paths = [word.rpartition("=")[2] for word in commands()[where] if "/" in word]
        assert len(paths) == 4
        for path in paths:
            assert any(path == folder or path.startswith(f"{folder}/") for folder in folders), path


def test_memory_is_enough_for_the_limits_of_the_service():
    """The sum of docs/how-to/containers.md."""
    name, *arguments = commands()["kubernetes"]
    with typer.main.get_command(app).commands[name].make_context(name, arguments) as context:
        pixels = int(context.params["max_megapixels"] * 1e6)
    cpus = int(CONTAINER["resources"]["limits"]["cpu"])
    process, waiting = 300e6, 2 * RequestLimits(Settings(detector=Path("x"))).max_waiting_bytes
    needed = process + waiting + cpus * max_memory(pixels)
    parts = [process, waiting / 2, waiting / 2, cpus * max_memory(pixels), needed]
    rows = re.findall(r"\| ([\d,]+) MB \|$", CONTAINERS.read_text("utf-8"), re.MULTILINE)
    assert rows == [f"{round(part / 1e6):,}" for part in parts]
    assert needed < 4e9 < 1.3 * needed
    assert CONTAINER["resources"]["limits"]["memory"] == "4Gi"
    assert COMPOSE["services"]["nescio"]["mem_limit"] == "4g"
    assert COMPOSE["services"]["nescio"]["cpus"] == cpus
    assert unit()["MemoryMax"] == "4G"
    assert all("--max-megapixels" in " ".join(words) for where, words in commands().items()
               if where != "Dockerfile")  # fmt: skip


def test_there_is_time_to_answer_the_last_requests():
    from nescio.service.server import _LONGEST_REQUEST_SECONDS

    drain = [word for word in CONTAINER["args"] if word.startswith("--drain-seconds=")]
    least = _LONGEST_REQUEST_SECONDS + int(drain[0].partition("=")[2])
    assert POD["terminationGracePeriodSeconds"] > least
    assert int(unit()["TimeoutStopSec"]) > least
    assert COMPOSE["services"]["nescio"]["stop_grace_period"] == f"{unit()['TimeoutStopSec']}s"


# --- the image -----------------------------------------------------------------------------------


def test_the_image_runs_without_a_shell_and_not_as_root():
    _, last = dockerfile()
    assert last("ENTRYPOINT").words == ["nescio"]
    assert last("HEALTHCHECK").words[:2] == ["python", "-c"]
    assert last("USER").rest == "{runAsUser}:{runAsGroup}".format(**POD["securityContext"])
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert COMPOSE["services"]["nescio"]["read_only"] is True


def test_what_the_image_copies_is_not_ignored():
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copied = [
        source
        for step in dockerfile()[0]
        if (step.stage, step.name) == (0, "COPY")
        for source in step.rest.split()[:-1]
    ]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)
    assert any(fnmatch("tests", line) for line in lines)


def test_the_image_installs_only_files_with_hashes_of_the_locked_versions():
    instructions, _ = dockerfile()
    [base] = [step.rest.partition("=")[2] for step in instructions if step.name == "ARG"]
    lock = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert f"Python {base.removeprefix('python:').removesuffix('-slim')} " in lock[0]
    installs = [step.rest for step in instructions if step.name == "RUN" and "install" in step.rest]
    packages, nescio = (rest for rest in installs if rest.startswith("pip "))
    assert "--require-hashes --requirement requirements.txt" in packages
    assert "--no-deps --no-build-isolation" in nescio
    lines = (DEPLOY / "requirements.txt").read_text("utf-8").splitlines()[1:]
    versions = [line.partition(" ")[0] for line in lines]
    assert {*versions} <= {line.partition(" ")[0] for line in lock}
    assert all(re.search(" --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    names = {version.partition("==")[0] for version in versions}
    assert names >= {"onnxruntime", "starlette", "tokenizers", "hatchling", "scikit-learn"}
    assert "torch" not in names


def test_the_service_without_a_container_has_the_extras_of_the_image():
    for file in (DEPLOY / "systemd" / "nescio.service", CONTAINERS):
        assert "'.[serve,onnx]'" in file.read_text("utf-8")


def test_building_the_image_sends_no_statistics():
    [imports] = [
        step.rest for step in dockerfile()[0] if step.name == "RUN" and "import " in step.rest
    ]
    assert "onnxruntime" in imports
    assert imports.startswith("env ORT_DISABLE_TELEMETRY=1 ")


# --- schemas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda file: file.stem)
def test_manifests_have_the_schema_of_kubernetes(file):
    checker = pytest.importorskip("kubernetes_validate")
    for document in documents(file):
        if document["kind"] != "Kustomization":
            checker.validate(document, "1.31", strict=True)


def test_the_kustomization_has_every_manifest():
    [kustomization] = documents("kubernetes/kustomization.yaml")
    manifests = {file.name for file in KUBERNETES} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == manifests
    built = run(tool("kubectl"), "kustomize", DEPLOY / "kubernetes")
    assert len(list(yaml.safe_load_all(built))) == len(manifests)
    # The image of the page, which has the files that the pods serve.
    [image] = re.findall(r"image: (\S+)", built)
    assert f"docker push {image}\n" in CONTAINERS.read_text("utf-8")


def test_the_image_of_the_pods_has_the_files_that_they_serve():
    base, copy = dockerfile("kubernetes/Dockerfile")[0]
    assert copy.name == "COPY"
    *sources, target = copy.rest.split()
    served = [word.rpartition("=")[2] for word in CONTAINER["args"] if "/models/" in word]
    assert served == [target + source for source in sources]
    assert base.rest == COMPOSE["services"]["nescio"]["image"]


def test_selectors_ports_and_volumes_belong_together():
    [service], [budget], [policy] = (
        list(documents(f"kubernetes/{name}.yaml")) for name in ("service", "disruption", "network")
    )
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    [port] = CONTAINER["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert port["containerPort"] == 8000
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port["name"]}]
    assert policy["spec"]["egress"] == []
    volumes = {volume["name"] for volume in POD["volumes"]}
    assert volumes == {mount["name"] for mount in CONTAINER["volumeMounts"]}


def test_what_compose_mounts_exists():
    secrets = set(COMPOSE["secrets"])
    made_by_the_user = {"../models"}
    for service in COMPOSE["services"].values():
        assert set(service.get("secrets", [])) <= secrets
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert source in made_by_the_user or (DEPLOY / source).is_dir(), source
            else:
                assert source in COMPOSE["volumes"]
    [prometheus] = documents("prometheus/prometheus.yml")
    [job] = prometheus["scrape_configs"]
    assert job["authorization"]["credentials_file"] == "/run/secrets/token"
    assert job["static_configs"][0]["targets"] == ["nescio:8000"]
    assert "nescio" in COMPOSE["services"]


def test_the_dashboard_finds_its_data_source():
    dashboard = json.loads((DEPLOY / "grafana/dashboards/nescio.json").read_text("utf-8"))
    [provisioned] = documents("grafana/provisioning/datasources/prometheus.yaml")
    [folder] = documents("grafana/provisioning/dashboards/nescio.yaml")
    [source] = provisioned["datasources"]
    panels = dashboard["panels"]
    used = {part["datasource"]["uid"] for panel in panels for part in (panel, *panel["targets"])}
    assert used == {source["uid"]}
    targets = [volume.split(":")[1] for volume in COMPOSE["services"]["grafana"]["volumes"]]
    assert folder["providers"][0]["options"]["path"] in targets
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels)


# --- programs ------------------------------------------------------------------------------------


def test_the_alerts_fire_when_they_should():
    promtool = tool("promtool")
    run(promtool, "check", "rules", DEPLOY / "prometheus" / "alerts.yml")
    run(promtool, "test", "rules", DEPLOY / "prometheus" / "alerts_test.yml")


def test_every_alert_is_tested():
    [rules], [tests] = documents("prometheus/alerts.yml"), documents("prometheus/alerts_test.yml")
    alerts = {rule["alert"] for rule in rules["groups"][0]["rules"] if "alert" in rule}
    fired = {
        rule_test["alertname"]
        for test in tests["tests"]
        for rule_test in test.get("alert_rule_test", [])
        if rule_test["exp_alerts"]
    }
    assert fired == alerts


def test_the_page_names_files_and_alerts_that_exist():
    page = CONTAINERS.read_text("utf-8")
    made_by_the_user = "deploy/secrets"
    paths = {path.rstrip("./") for path in re.findall(r"deploy/[\w./-]*", page)}
    named = [path for path in paths if not path.startswith(made_by_the_user)]
    assert len(named) > 8
    assert [path for path in named if not (ROOT / path).exists()] == []
    [rules] = documents("prometheus/alerts.yml")
    alerts = [rule["alert"] for rule in rules["groups"][0]["rules"] if "alert" in rule]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == alerts


def test_each_file_of_a_command_is_in_the_repository_or_made_above_it():
    page = CONTAINERS.read_text("utf-8")
    made, used = set(), 0
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if language == "python":
            made |= set(re.findall(r'"(models/[\w.]+)"', text))
        for line in text.splitlines() if language == "sh" else []:
            made |= set(re.findall(r" > (\S+)$", line))
            kinds = r"\w[\w/-]*\.(?:nescio|onnx|txt|yaml|service)|deploy/secrets/\w+"
            for path in re.findall(rf"(?:^|(?<=[ =]))(?:{kinds})(?= |$)", line):
                used += 1
                assert path in made or (ROOT / path).is_file(), line
    assert used > 10
    # Whoever copies the repository copies none of it.
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert {f"/{Path(path).parent}/" for path in made} == {"/models/", "/deploy/secrets/"}
    assert {"/models/", "/deploy/secrets/"} <= set(ignored)


def test_systemd_accepts_the_unit(tmp_path):
    analyze = tool("systemd-analyze")
    text = (DEPLOY / "systemd" / "nescio.service").read_text("utf-8")
    program = shlex.split(unit()["ExecStart"])[0]
    (tmp_path / "nescio.service").write_text(text.replace(program, sys.executable))
    # It only warns of a setting that it does not know.
    assert "nescio.service" not in run(analyze, "verify", tmp_path / "nescio.service")
    # 1.4 of 10, the less the better; what is left is the network.
    run(analyze, "security", "--offline=true", "--threshold=15", tmp_path / "nescio.service")
