"""The plugin contract: what a provider is and what it must do (PR, EX, FS, CP)."""

from __future__ import annotations

from pinfold.provider._capabilities import NO_CAPABILITIES as NO_CAPABILITIES
from pinfold.provider._capabilities import Capabilities as Capabilities
from pinfold.provider._capabilities import Features as Features
from pinfold.provider._exec import ExecRequest as ExecRequest
from pinfold.provider._exec import ExecResult as ExecResult
from pinfold.provider._exec import OutputStream as OutputStream
from pinfold.provider._exec import Sink as Sink
from pinfold.provider._exec import check_exec as check_exec
from pinfold.provider._exec import guest_env as guest_env
from pinfold.provider._files import Files as Files
from pinfold.provider._files import FileStat as FileStat
from pinfold.provider._files import FileType as FileType
from pinfold.provider._files import TreeItem as TreeItem
from pinfold.provider._files import check_mode as check_mode
from pinfold.provider._instance import Context as Context
from pinfold.provider._instance import Details as Details
from pinfold.provider._instance import Endpoint as Endpoint
from pinfold.provider._instance import Instance as Instance
from pinfold.provider._instance import InstanceRef as InstanceRef
from pinfold.provider._instance import InstanceStatus as InstanceStatus
from pinfold.provider._instance import Owner as Owner
from pinfold.provider._instance import Pausable as Pausable
from pinfold.provider._instance import Ports as Ports
from pinfold.provider._instance import Snapshots as Snapshots
from pinfold.provider._instance import Terminal as Terminal
from pinfold.provider._instance import Terminals as Terminals
from pinfold.provider._instance import TerminalSize as TerminalSize
from pinfold.provider._paths import guest_path as guest_path
from pinfold.provider._paths import leads_out as leads_out
from pinfold.provider._provider import Availability as Availability
from pinfold.provider._provider import Descriptor as Descriptor
from pinfold.provider._provider import NoOptions as NoOptions
from pinfold.provider._provider import Pins as Pins
from pinfold.provider._provider import Provider as Provider
from pinfold.provider._provider import Supports as Supports
from pinfold.provider._provider import roots_of as roots_of
from pinfold.provider._tree import Blob as Blob
from pinfold.provider._tree import Entry as Entry
from pinfold.provider._tree import FileMark as FileMark
from pinfold.provider._tree import RestorePlan as RestorePlan
from pinfold.provider._tree import RestoreReport as RestoreReport
from pinfold.provider._tree import Scan as Scan
from pinfold.provider._tree import ScanState as ScanState
from pinfold.provider._tree import Tree as Tree
