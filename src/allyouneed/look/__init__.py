"""Look: what a run computes, on a page."""

from allyouneed.look.gather import look_at
from allyouneed.look.inside import ask
from allyouneed.look.page import Page
from allyouneed.look.view import View

__all__ = ["Page", "View", "ask", "look_at"]
