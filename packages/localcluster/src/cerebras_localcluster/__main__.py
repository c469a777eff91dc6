"""`python -m cerebras_localcluster up|down|status`: the commands without the client; `up --detach` runs it."""

import typer

from cerebras_localcluster.commands import register

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
register(app)
app()
