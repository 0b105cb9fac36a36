// Starts `shardwright lsp` with the editor's settings, and anew where these change.
const { commands, env, window, workspace } = require("vscode");
const { CloseAction, LanguageClient } = require("vscode-languageclient/node");

let client;
let log;
let running = Promise.resolve(); // one start or stop after the other

class Client extends LanguageClient {
  // A start that fails is said once, by `start`.
  error(message, data, show) {
    super.error(message, data, this.starting ? false : show);
  }
}

async function start() {
  const settings = workspace.getConfiguration("shardwright");
  const command = settings.get("command");
  const server = { command, args: ["lsp"] };
  client = new Client("shardwright", "Shardwright", { run: server, debug: server }, {
    documentSelector: [{ language: "shard" }],
    initializationOptions: {
      chip: settings.get("chip"),
      objective: settings.get("objective"),
      level: settings.get("level"),
    },
    outputChannel: log,
    initializationFailedHandler: () => false,
    errorHandler: {
      error: (...told) => usual.error(...told),
      closed: () => (client.starting ? { action: CloseAction.DoNotRestart, handled: true } : usual.closed()),
    },
  });
  const usual = client.createDefaultErrorHandler();
  client.starting = true;
  await client.start().catch(() => {}); // where the server ends at once, this is fulfilled all the same
  client.starting = false;
  if (!client.isRunning()) {
    complain(command);
  }
}

async function complain(command) {
  const choice = await window.showErrorMessage(
    `${command} lsp does not start. Set shardwright.command to that of an environment with shardwright[editor].`,
    "Open Setting",
    "Show Output",
  );
  if (choice === "Open Setting") {
    const where = env.remoteName ? "openRemoteSettings" : "openSettings";
    commands.executeCommand(`workbench.action.${where}`, { query: "shardwright.command" });
  } else if (choice) {
    log.show();
  }
}

async function stop() {
  if (client?.isRunning()) {
    await client.stop().catch(() => {}); // one that does not end in time is killed
  }
}

function restart() {
  running = running.then(stop).then(start);
  return running;
}

function activate(context) {
  log = window.createOutputChannel("Shardwright");
  const changes = workspace.onDidChangeConfiguration((event) => event.affectsConfiguration("shardwright") && restart());
  context.subscriptions.push(log, changes);
  return restart();
}

function deactivate() {
  return running.then(stop);
}

module.exports = { activate, deactivate };
