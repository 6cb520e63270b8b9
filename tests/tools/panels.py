#!/usr/bin/env python3
"""Runs the queries of every panel of a board on a Prometheus, over all its data.

    panels.py http://127.0.0.1:9090 config/grafana/dashboards/tributary.json [RATE_INTERVAL]

The last is four times the scrape interval, 10s unless told.
Prints the queries that bring nothing, how many bring something, and the alerts that fired. Exit code 1 if one brings nothing or is
refused, or a rule fails. Standard library only.
"""

import json
import math
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

# Longer than any check runs.
SPAN_SECONDS = 1800


def ask(base, path, **parameters):
    query = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{base}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{path} {parameters}: {error.code} {error.read().decode(errors='replace')}")


def filled(expression, interval):
    """The query as Grafana sends it, with all instances selected."""
    return expression.replace("$__rate_interval", interval).replace("$instance", ".*")


def has_data(base, expression, interval):
    """Whether any series has a number at any time. A missing series is not taken for zero, and a zero counts as a number."""
    expression = filled(expression, interval).removesuffix(" or vector(0)").removesuffix(" > 0")
    now = time.time()
    found = ask(base, "query_range", query=expression, start=now - SPAN_SECONDS, end=now, step="1s")
    return any(math.isfinite(float(value)) for series in found["result"] for _, value in series["values"])


def main(base, board, interval="10s"):
    with open(board, encoding="utf-8") as file:
        panels = [panel for panel in json.load(file)["panels"] if panel["type"] != "row"]
    empty, queries, silent = [], 0, []
    for panel in panels:
        answers = [has_data(base, target["expr"], interval) for target in panel["targets"]]
        queries += len(answers)
        silent += [target["expr"] for target, answer in zip(panel["targets"], answers) if not answer]
        if not any(answers):
            empty.append(panel["title"])
    for title in empty:
        print(f"no data: {title}")
    for expression in silent:
        print(f"nothing for: {expression}")
    rules = [rule for group in ask(base, "rules")["groups"] for rule in group["rules"]]
    broken = [f"{rule['name']}: {rule.get('lastError')}" for rule in rules if rule["health"] != "ok"]
    for rule in broken:
        print(f"rule fails: {rule}")
    now = time.time()
    fired = ask(base, "query_range", query='count by (alertname) (ALERTS{alertstate="firing"})', start=now - SPAN_SECONDS, end=now, step="1s")
    names = sorted(series["metric"]["alertname"] for series in fired["result"])
    print(f"{len(rules) - len(broken)} of {len(rules)} rules evaluate; fired: {', '.join(names) or 'none'}")
    print(f"{queries - len(silent)} of {queries} queries have data")
    print(f"{len(panels) - len(empty)} of {len(panels)} panels have data")
    return 1 if silent or broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
