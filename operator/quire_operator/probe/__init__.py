"""Looks at running pods from outside: their metrics, what routers were asked, and a completion through the router."""

from quire_operator.probe.completion import Verifier
from quire_operator.probe.demand import Demand
from quire_operator.probe.samples import Samples
from quire_operator.probe.scrape import Scraper

__all__ = ["Demand", "Samples", "Scraper", "Verifier"]
