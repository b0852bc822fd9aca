"""E-mail by SMTP, each sent once as far as SMTP can tell. ``penstock serve --services`` runs the program."""

import os
import smtplib
from datetime import timedelta
from email.message import EmailMessage

from penstock import App, Id, MutationCtx, NonRetryableError, Retry, Table, public, sync

app = App()
mail = app.workpool(
    "mail",
    max_parallelism=5,
    default_retry=Retry(max_attempts=6, initial_backoff=0.2, base=4),
    status_ttl=timedelta(days=30),
)


class Customer(Table):
    email: str


@app.mutation(access=public)
async def sign_up(ctx: MutationCtx, email: str) -> Id[Customer]:
    customer = await ctx.db.insert(Customer(email=email))
    await mail.with_options(retry=True).enqueue(ctx, send, email, "Welcome", "It is good to have you here.")
    return customer


@app.internal_action
def send(ctx: sync.ActionCtx, to: str, subject: str, text: str) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@shop.example", to, subject
    message["Message-ID"] = f"<{ctx.work.key}@shop.example>"  # the same in each attempt
    message.set_content(text)
    with smtplib.SMTP(os.environ["SMTP_HOST"], int(os.environ["SMTP_PORT"]), timeout=30) as server:
        try:
            server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            ((code, reason),) = error.recipients.values()
            if code >= 500:  # for good, such as an unknown mailbox
                raise NonRetryableError(f"{to}: {reason.decode()}") from error
            raise
