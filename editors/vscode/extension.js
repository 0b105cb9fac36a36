// Starts `shardwright lsp` and hands it the editor's settings.
const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

function activate() {
  const settings = workspace.getConfiguration("shardwright");
  const server = { command: settings.get("command"), args: ["lsp"] };
  client = new LanguageClient("shardwright", "Shardwright", { run: server, debug: server }, {
    documentSelector: [{ language: "shard" }],
    initializationOptions: {
      chip: settings.get("chip"),
      objective: settings.get("objective"),
      level: settings.get("level"),
    },
  });
  return client.start();
}

function deactivate() {
  return client?.stop();
}

module.exports = { activate, deactivate };
