"""The requests of the jobs."""

from __future__ import annotations

import json

from benchmarks.jobs import DIFFERING, all_jobs
from benchmarks.messages import FORMS, image, json_request, small, transcoder_request, variations


def test_variations_have_the_form_of_their_case() -> None:
    """Names, shapes and datatypes are equal; numbers, and thus lengths, differ."""
    case, found = small(), [*variations(small())]
    for each in found:
        assert {name: (a.shape, a.dtype) for name, a in case.inputs.items()} == {
            name: (a.shape, a.dtype) for name, a in each.inputs.items()
        }
    bodies = {json_request(each).body for each in found}
    assert 30 == len(bodies)
    assert len({len(body) for body in bodies}) > 10


def test_every_system_of_a_small_json_job_has_equal_load() -> None:
    """Each system receives the same number of different requests."""
    jobs = [job for job in all_jobs() if job.name.startswith("json-") and "small" in job.name]
    assert 3 == len(jobs)
    assert {30} == {len(each.others) for job in jobs for each in job.contenders}


def test_differing_requests_share_no_form() -> None:
    """Each has its own names, id and header, for the gateway and for its peer."""
    (job,) = (each for each in all_jobs() if each.name.startswith("forms"))
    many = [each for each in job.contenders if DIFFERING in each.name]
    assert 2 == len(many)
    for each in many:
        found = [each.question, *each.others]
        documents = [json.loads(message.body) for message in found]
        assert FORMS == len({message.fields for message in found})
        assert FORMS == len({document["id"] for document in documents})
        assert FORMS == len({document["inputs"][0]["name"] for document in documents})
        assert 31 == len({str(document["inputs"][0]["shape"]) for document in documents})


def test_transcoder_requests_have_equally_many_numbers() -> None:
    """Their JSON has the same tensors in another form."""
    assert (
        transcoder_request(image()).body.count(b",") == json_request(image()).body.count(b",") + 1
    )
