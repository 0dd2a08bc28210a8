"""From layers of opinion to a complete spec, and to a pinned one (RS)."""

from __future__ import annotations

from pinfold.resolve._layers import Layer as Layer
from pinfold.resolve._pin import pin as pin
from pinfold.resolve._pin import provider_of as provider_of
from pinfold.resolve._resolve import AnyLayer as AnyLayer
from pinfold.resolve._resolve import default_spec as default_spec
from pinfold.resolve._resolve import resolve as resolve
from pinfold.resolve._rules import RULES as RULES
from pinfold.resolve._sets import INLINE as INLINE
from pinfold.resolve._sets import Profile as Profile
from pinfold.resolve._sets import ProfileSet as ProfileSet
from pinfold.resolve._sets import Selection as Selection
from pinfold.resolve._sets import SetMode as SetMode
from pinfold.resolve._sets import template_layer as template_layer
from pinfold.resolve._sets import unknown_profile as unknown_profile
from pinfold.resolve._targets import TargetInfo as TargetInfo
from pinfold.resolve._targets import describe as describe
from pinfold.resolve._targets import targets as targets
