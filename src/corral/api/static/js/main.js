/** Puts the page together: who knows whom. */

import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Conversations } from "./conversations.js";
import { Fleet } from "./fleet.js";
import { FleetView } from "./fleet_view.js";
import { Messages } from "./messages.js";
import { setUpPanels } from "./panels.js";
import { Preferences } from "./preferences.js";
import { ServerView } from "./server.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { StatusFeed } from "./status.js";

const preferences = new Preferences();
const api = new Api(() => preferences.key);
const conversations = new Conversations();
const chat = new Chat(api, conversations, preferences);
const settings = new Settings(chat, conversations, preferences, api);
const feed = new StatusFeed(api);
const fleet = new Fleet(api, feed);
const closeDrawers = setUpPanels(preferences);

const composer = new Composer(chat);
new Messages(chat, { edit: (message) => composer.write(chat.takeBack(message)) });
new Sidebar(chat, conversations, () => {
  closeDrawers();
  composer.focus();
});
new ServerView(feed, fleet);
new FleetView(fleet, chat, preferences);

fleet.addEventListener("kind", () => (settings.hasDefaults = !fleet.isFleet));
settings.keyChanged = () => feed.start();
feed.addEventListener("refusal", () => settings.open(feed.problem));
chat.addEventListener("refusal", () => settings.open(chat.conversation.messages.at(-1)?.error));
window.addEventListener("pagehide", () => chat.keep());

feed.start();
composer.focus();
