//! Texts of `overmind help TOPIC`: what concerns several commands at once.

/// Every topic with its text: lines of at most 100 characters, a line end after each.
pub const TOPICS: [(&str, &str); 6] = [
    ("environments", ENVIRONMENTS),
    ("approvals", APPROVALS),
    ("models", MODELS),
    ("secrets", SECRETS),
    ("variables", VARIABLES),
    ("output", OUTPUT),
];

/// Earlier names of topics, which `overmind help` still takes.
pub const EARLIER: [(&str, &str); 2] = [("rooms", ENVIRONMENTS), ("environment", VARIABLES)];

const ENVIRONMENTS: &str = "\
Where a run works

A run that is started in a git repository has an environment of its own: a worktree on its own
branch, with the ports, databases and services that the project's .overmind.yml describes. Runs do
not see each other's changes, and the files that you have open stay as they are.

  overmind run coder \"fix the failing test\"    in an environment of the current repository
  overmind run --project ~/src/shop coder …    in an environment of another one
  overmind run --here make                     in the current directory, without an environment
  overmind work NAME                           what it changed
  overmind url NAME                            where its services answer
  overmind done NAME --merge                   into the branch that is checked out
  overmind done NAME --pr-branch fix-login     onto a branch to be pushed
  overmind done NAME --discard --yes           throw it away

Until you decide, the work stays on its branch. `overmind init` proposes an .overmind.yml.
More: docs/worktrees.md, docs/overmind-yml.md
";

const APPROVALS: &str = "\
What waits for you

An agent may do what its policy allows, and asks for the rest. The run waits meanwhile, however long
it takes, and over restarts of the server. A run that you follow on a terminal asks there.

  overmind inbox                               approvals, questions and limits that were reached
  overmind inbox show ID                       one of them, with everything that it would do
  overmind approve NAME                        the run, or the item, by name or id
  overmind deny NAME --reason \"use staging\"    the agent gets the reason
  overmind answer NAME the port is 8080        a question
  overmind policy explain --command 'rm -rf .' what the policy says, and by which rule
  overmind inbox proposals                     rules for what you approve again and again

More: docs/policy.md
";

const MODELS: &str = "\
Models and their keys

The server calls models; agents never hold a key. It finds a provider by the model's name: claude-…
at Anthropic, gpt-… at OpenAI, deepseek-… at DeepSeek, PROVIDER:MODEL at a server that overmind.toml
names. The model `deterministic` needs none and does what a line of the task says (`shell: make`).

  overmind vault set anthropic_api_key         asks for it; or set ANTHROPIC_API_KEY before `up`
  overmind agent create --name coder --model claude-sonnet-5-5
  overmind prices claude-sonnet-5-5            what it costs, and since when
  overmind budget set agent:coder --usd 5 --per day
  overmind key create editor --scope model     lets another program call models by this server

More: docs/gateway.md, docs/budgets.md
";

const SECRETS: &str = "\
Secrets

A secret's value is given once and shown never. Programs get a placeholder which works only for the
service that it was granted for, and only until their run ends.

  overmind vault set npm_token                 asks, and shows nothing
  overmind vault grant coder --service github  calls of it; the key stays with the server
  overmind vault grant coder --secret npm_token   the value itself, in the environment of commands
  overmind vault grants                        who may use what
  overmind vault revoke coder --service github

More: docs/vault.md
";

const VARIABLES: &str = "\
Variables that the commands read

  OVERMIND_DATA         directory of the data, as --data        [~/.local/share/overmind]
  OVERMIND_CONFIG       configuration file, as --config         [<data>/overmind.toml]
  OVERMIND_SERVER       server to talk to, as --server          [the socket in the data directory]
  OVERMIND_TOKEN        key to it, made by `overmind key create`
  OVERMIND_COLONY       colony to work in, as --colony          [default]
  NO_COLOR              no colours, as --color never

Every setting of overmind.toml has one, too: `overmind config show -o wide` lists them, and says
where each value comes from. A run's program finds OVERMIND_SESSION_ID, the run's id, and a token
with which `overmind` works inside of it.
";

const OUTPUT: &str = "\
Output and exit codes

  -o table              for people; wide adds columns
  -o json, -o yaml      everything, for programs; --json for short
  -o name               ids alone: overmind ps -o name | xargs -n1 overmind stop
  -q                    results and errors only; `run -q` prints the id alone

Wherever a run or an agent is named, its name, its id or a unique part of either is taken. Durations
have units: 500ms, 90s, 10m, 2h, 1d; a bare number is seconds.

Exit codes:
  0 done   1 failed   2 wrong usage   3 not found   4 server unreachable   5 conflict   6 denied
`run` with --follow or --wait, `wait` and `result` exit as the run's program did, or for an agent:
  0 done   10 failed or not started   11 stopped   12 waits for a human
";
