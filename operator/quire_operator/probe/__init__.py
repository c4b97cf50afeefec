"""Looks at running pods from outside: their metrics, and a completion through the router. Decides nothing."""

from quire_operator.probe.completion import Verifier
from quire_operator.probe.samples import Samples
from quire_operator.probe.scrape import Scraper

__all__ = ["Samples", "Scraper", "Verifier"]
