"""An instance made from one primitive: spawning a process in a place with a POSIX shell."""

from __future__ import annotations

from pinfold.posix._gate import Gate as Gate
from pinfold.posix._guest import COOKIE as COOKIE
from pinfold.posix._guest import TASK as TASK
from pinfold.posix._guest import ExecutingGuest as ExecutingGuest
from pinfold.posix._guest import Guest as Guest
from pinfold.posix._guest import Process as Process
from pinfold.posix._guest import SupervisedProcess as SupervisedProcess
from pinfold.posix._guest import SupervisingGuest as SupervisingGuest
from pinfold.posix._guest import TerminalGuest as TerminalGuest
from pinfold.posix._instance import POSIX_FEATURES as POSIX_FEATURES
from pinfold.posix._instance import Equipment as Equipment
from pinfold.posix._instance import PosixInstance as PosixInstance
from pinfold.posix._instance import PosixTerminalInstance as PosixTerminalInstance
from pinfold.posix._instance import equip as equip
from pinfold.posix._layout import Layout as Layout
from pinfold.posix._probe import Found as Found
