// An MQTT.js client that reports what happens to it, one JSON object a line.
// Usage: node mqttjs.js PORT CLIENT_ID VERSION
'use strict'
const mqtt = require('mqtt')
const [port, clientId, version] = process.argv.slice(2)
const say = (event) => console.log(JSON.stringify(event))

const client = mqtt.connect({
  host: '127.0.0.1',
  port: Number(port),
  clientId,
  protocolVersion: Number(version),
  clean: false,
  properties: version === '5' ? { sessionExpiryInterval: 3600 } : undefined,
  resubscribe: false, // the broker has to remember
  reconnectPeriod: 50
})
let subscribed = false
client.on('connect', (connack) => {
  say({ event: 'connect', sessionPresent: connack.sessionPresent })
  if (connack.sessionPresent || subscribed) return
  subscribed = true
  client.subscribe(clientId + '/in', { qos: 2 }, (error) => say({ event: 'subscribed', error }))
})
client.on('message', (topic, payload) => {
  say({ event: 'message', payload: payload.toString() })
  if (!payload.toString().startsWith('echo ')) return
  client.publish(clientId + '/out', payload, { qos: 2 }, () => say({ event: 'published' }))
})
client.on('close', () => say({ event: 'close' }))
client.on('error', () => {})
