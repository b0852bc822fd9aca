"""A program on the generated client of the chat. Type checkers refuse its last three calls, and nothing else."""

from __future__ import annotations

from api import Api, AsyncApi, ChannelId, Listed, MessageId  # type: ignore[import-not-found]  # generated

from penstock.client import AsyncClient, Client


async def use(client: AsyncClient) -> None:
    api = AsyncApi(client)
    channel: ChannelId = await api.chat.open_channel(name="general")
    sent: MessageId = await api.chat.send(channel="general", author="Ada", text="hello")
    async with api.live.chat.channels() as answers:
        async for channels in answers:
            listed: Listed = channels[0]
            print(listed["name"].upper(), listed["messages"] + 1)
    await api.chat.history(channel=channel, pagination_opts={"numItems": 10})
    await api.chat.send(channel="general", author="Ada")
    await api.chat.history(channel=sent, pagination_opts={})


def use_sync(client: Client) -> None:
    for message in Api(client).chat.latest(channel="general"):
        print(message["_creationTime"], message["nothing"])
