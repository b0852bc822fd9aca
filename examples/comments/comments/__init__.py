"""Comments with moderation, as a component: a program uses `app`, as often as it has places for comments."""

from comments.moderation import Comment, add, app, hide, latest, moderate_with, thread

__all__ = ["Comment", "add", "app", "hide", "latest", "moderate_with", "thread"]
