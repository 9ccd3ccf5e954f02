"""How to cite the program and the job."""

from __future__ import annotations

from jouletune.report.facts import Job

TITLE = "jouled: power modes of least energy per inference within a latency bound"
AUTHORS = "The jouled authors"
LICENSE = "Apache-2.0"


def _version(job: Job) -> str:
    versions = job.result.get("versions") or {}
    return str(versions.get("jouled") or "")


def line(job: Job) -> str:
    """For a list of references."""
    version = f", version {_version(job)}" if _version(job) else ""
    began = f" of {job.began_utc}" if job.began_utc else ""
    return f"{AUTHORS}. {TITLE}{version}. {LICENSE}. Report of job {job.result['job']}{began}."


def bibtex(job: Job) -> str:
    """For a bibliography."""
    year = job.began_utc[:4]
    fields = [("author", f"{{{AUTHORS}}}"), ("title", f"{{{TITLE}}}")]
    fields += [("version", _version(job))] if _version(job) else []
    fields += [("year", year)] if year else []
    fields += [("note", f"License {LICENSE}; report of job {job.result['job']}")]
    body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields)
    return f"@software{{jouled,\n{body}\n}}"
