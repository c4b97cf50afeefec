"""What bodies share whose prompt is a conversation: messages, tools, what the chat template gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from quire.errors import RequestError, shown
from quire.server.bodies.fields import Body, Fields
from quire.server.bodies.tools import Function, Tool, ToolChoice, Tools, checked_tools


class Part(Fields):
    """One part of a message's content; only text for now."""

    PASSED_ON: ClassVar[bool] = True

    type: str
    text: str | None = None


class CalledFunction(Fields):
    """A function that was called. arguments: JSON."""

    PASSED_ON: ClassVar[bool] = True

    name: str
    arguments: str = "{}"


class ToolCall(Fields):
    """`tool_calls[]` of an assistant's message."""

    PASSED_ON: ClassVar[bool] = True

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Fields):
    """One message; fields beside these reach the template as they are."""

    PASSED_ON: ClassVar[bool] = True

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = Field(None, description="a text or parts of type text, joined by line breaks")
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class WithTools(Body):
    """Bodies with OpenAI's tools."""

    tools: list[Tool] | None = Field(None, description="functions that may be called")
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = Field(
        None, description="none, auto, required, a named function, or allowed_tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false ends the answer behind its first call")

    def checked_tools(self) -> Tools:
        """The functions that may be called; raises RequestError that names the field."""
        functions: list[Function] = []
        for index, tool in enumerate(self.tools or ()):
            if tool.type != "function" or tool.function is None:
                where = f"tools.{index}.{'type' if tool.type != 'function' else 'function'}"
                message = f"{where}: only tools of type function are possible here, each with function, got {shown(tool.type)}"
                raise RequestError(message, param=where, code="unsupported_parameter")
            functions.append(tool.function)
        choice = self.tool_choice
        mode, names = choice.read() if isinstance(choice, ToolChoice) else (choice, None)
        return checked_tools(functions, mode, names, parallel=self.parallel_tool_calls)


class Templated(Body):
    """What the chat template gets beside the messages."""

    add_generation_prompt: bool = Field(True, description="false: the prompt does not begin an answer")
    continue_final_message: bool = Field(
        False,
        description="the answer goes on with the text of the last message, and add_generation_prompt has no effect",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables of the chat template")

    @property
    def continues(self) -> bool:
        """Whether the answer goes on with the text of the last message."""
        return self.continue_final_message

    @property
    def generation_prompt(self) -> bool:
        """Whether the prompt begins an answer."""
        return self.add_generation_prompt and not self.continues

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """Variables of the chat template."""
        return self.chat_template_kwargs or {}


class Conversation(Templated):
    """A conversation that is answered, or would be."""

    PROMPT_FIELD: ClassVar[str] = "messages"
    MANY_TURNS: ClassVar[bool] = True
    """Making turns of what came may take long."""

    reasoning_effort: str | None = Field(
        None, description="a variable of the chat template; none also sets enable_thinking to false"
    )

    @property
    def effort(self) -> str | None:
        """How much the model should think, in the template's words."""
        return self.reasoning_effort

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """What the chat template gets; the effort as `reasoning_effort`, and as enable_thinking where it is none."""
        effort = self.effort
        known: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        if effort == "none":
            known["enable_thinking"] = False
        return {**known, **super().template_variables}

    @property
    def truncated(self) -> int | None:
        """How many tokens at its end the prompt will be cut to (-1: what the model takes); None: its length is a reason to refuse it."""
        return None

    def turns(self) -> Sequence[ChatMessage]:
        """The conversation; raises RequestError that names the field."""
        raise NotImplementedError

    def checked_tools(self) -> Tools:
        """The functions that may be called; raises RequestError that names the field."""
        raise NotImplementedError
