"""Look: what a run computes, on a page."""

from allyouneed.look.gather import look_at
from allyouneed.look.page import Page
from allyouneed.look.view import View

__all__ = ["Page", "View", "look_at"]
