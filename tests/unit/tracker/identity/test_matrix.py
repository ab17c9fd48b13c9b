"""The verb of every method of every service stands in one table, and every verb in a role."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from farm_tracker.identity.matrix import PACKAGE, RULES, rule_of
from farm_tracker.identity.model import VERBS_OF_ROLE, Role, Verb

import farm.api.v1


def methods():
    """Return the descriptor of each method of each service, by its name in the table."""
    found = {}
    for module in pkgutil.iter_modules(farm.api.v1.__path__):
        if module.name.endswith("_pb2"):
            descriptor = importlib.import_module(f"farm.api.v1.{module.name}").DESCRIPTOR
            for service in descriptor.services_by_name.values():
                found |= {f"{service.name}/{method.name}": method for method in service.methods}
    return found


def test_matrix_has_exactly_the_methods_of_all_services():
    assert sorted(RULES) == sorted(methods())


def test_matrix_names_fields_that_the_requests_have():
    for name, rule in RULES.items():
        for path in filter(None, (rule.selector, rule.account)):
            message = methods()[name].input_type
            *outer, last = path.split(".")
            for part in outer:
                message = message.fields_by_name[part].message_type
            assert message.fields_by_name[last].type == message.fields_by_name[last].TYPE_STRING


def test_matrix_narrows_every_request_that_names_devices_or_an_account():
    def strings(message, path=""):
        for field in message.fields:
            if field.type == field.TYPE_MESSAGE and field.message_type is not message:
                yield from strings(field.message_type, f"{path}{field.name}.")
            else:
                yield path + field.name

    for name, method in methods().items():
        paths = set(strings(method.input_type)) if not method.client_streaming else set()
        for field in ("selector", "account"):
            named = {path for path in paths if path.split(".")[-1] == field}
            if name != "IdentityService/CreateToken":
                assert named == set(filter(None, [getattr(RULES[name], field)])), name


def test_every_verb_belongs_to_a_role_and_is_needed_by_a_method():
    assert {rule.verb for rule in RULES.values()} == set(Verb)
    assert set().union(*VERBS_OF_ROLE.values()) == set(Verb)
    assert set(VERBS_OF_ROLE) == set(Role)


def test_roles_have_the_verbs_that_they_promise():
    user = {"see", "blobs", "build", "run", "lease"}
    assert {str(role): set(map(str, verbs)) for role, verbs in VERBS_OF_ROLE.items()} == {
        "user": user,
        "operator": user | {"operate"},
        "agent": {"agent", "blobs"},
        "enrolment": {"enrol"},
        "admin": user | {"operate", "agent", "enrol", "tokens"},
    }


@pytest.mark.parametrize(
    "method",
    ["", "/", "LeaseService/Acquire", f"/{PACKAGE}.LeaseService/Steal", "/x.LeaseService/Acquire"],
)
def test_method_outside_the_table_has_no_rule(method):
    assert rule_of(method) is None


def test_method_in_the_table_has_its_rule():
    assert rule_of(f"/{PACKAGE}.LeaseService/Acquire") is RULES["LeaseService/Acquire"]
